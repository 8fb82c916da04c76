"""What calls return beside `Result` and `Report`, for annotations.

Each name is reached from `trainwright`, too, where it is not listed.
"""

from trainwright.commands.codesign import CodesignReport
from trainwright.commands.profile import ProfileReport
from trainwright.commands.report import Page
from trainwright.commands.verify import VerifyReport
from trainwright.pages.schedule_report import ScheduleReport

__all__ = ["CodesignReport", "Page", "ProfileReport", "ScheduleReport", "VerifyReport"]
