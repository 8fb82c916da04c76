"""The page with the controls, and the policy that it is sent with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from trainwright.reporting.gantt_figure import theme_css
from trainwright.reporting.page.palette import palette_css
from trainwright.reporting.self_contained import asset, environment, policy

_SCRIPT = "page/live_page.js"


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """HTML and its content security policy."""

    html: str
    policy: str


@cache
def front_page() -> Front:
    """One page, its style and script inlined; it may talk to its own server and to no other."""
    style = "\n".join((*theme_css(), *palette_css(), asset("page/live_page.css")))
    script = asset(_SCRIPT)
    own = "connect-src 'self'; frame-src 'self'; base-uri 'none'; form-action 'none'"
    rules = f"{policy(style, [script])}; {own}; frame-ancestors 'none'"
    html = environment().get_template("page/live_page.html.j2").render(style=style, script=script)
    return Front(html=html, policy=rules)
