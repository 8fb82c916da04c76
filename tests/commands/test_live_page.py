"""The live page in a real browser."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import pytest

pytest.importorskip("fastapi", reason="needs the extra [serve]")
pytest.importorskip("uvicorn", reason="needs the extra [serve]")

from browser import needs_chromium
from trainwright.pages.gantt import DARK, LIGHT, rgb

pytestmark = [pytest.mark.browser, pytest.mark.serve, needs_chromium]


# A small model on one node, so that plans are quick; asked again it is answered at once.
SMALL = (
    "?model=gpt2&cluster=dgx-a100&devices=0&batch=4&sequence=9"
    "&option.schedule=1f1b&option.pp=1..2&option.cp=1"
)


@dataclass(frozen=True)
class Address:
    """What the browser opens."""

    text: str

    def as_uri(self):
        return self.text


@pytest.fixture
def page(browser, client):
    """The live page at an address."""

    def show(asked=SMALL, **size):
        browser.open(Address(client.address + asked), **size)
        settled(browser)
        return browser

    return show


def choose(browser, **values):
    """Set controls as a person does, all at once."""
    browser.run(
        f"Object.entries({json.dumps(values)}).forEach(([name, value]) => {{ "
        "const control = document.getElementById(name); control.value = value; "
        "const kind = control.type === 'range' ? 'input' : 'change';"
        "control.dispatchEvent(new Event(kind, { bubbles: true })); })"
    )
    settled(browser)


def settled(browser):
    browser.wait_until(
        "document.getElementById('answer').getAttribute('aria-busy') === 'false' "
        "&& !document.querySelector('iframe.coming')"
    )


def step(browser):
    return browser.run("explorer.last.step")


def text(browser, element):
    return browser.run(f"document.getElementById('{element}').textContent")


@pytest.mark.parametrize("dark", [False, True])
def test_it_opens_quietly_at_any_width_in_both_themes(browser, page, client, dark):
    page(width=1400, height=900, dark=dark)
    assert browser.messages == []
    assert all(url.startswith(client.address) for url in browser.requests)
    background = browser.run("getComputedStyle(document.body).backgroundColor")
    assert background == f"rgb{rgb((DARK if dark else LIGHT).page)}"
    for width in (1400, 900, 390):
        browser.resize(width, 900)
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("document.querySelector('iframe').clientHeight") > 300
    assert browser.messages == []


@pytest.mark.parametrize("width", [1400, 390])
def test_axe_finds_nothing_in_any_state(browser, page, width):
    page(width=width)
    for dark in (False, True):
        browser.prefer(dark=dark)
        assert browser.barriers() == {}
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert browser.barriers() == {}
    browser.run("document.getElementById('pin').click()")
    choose(browser, batch="5")
    assert browser.barriers() == {}
    choose(browser, **{"option-tp": "7"})
    assert text(browser, "faults")
    assert browser.barriers() == {}


def test_a_plan_and_its_reason_stand_beside_its_page(browser, page):
    page()
    assert "where the step goes: compute" in text(browser, "reason")
    assert "ZeRO-" in text(browser, "layout")
    inside = "document.querySelector('iframe').contentDocument.querySelector('h1').textContent"
    assert browser.run(inside) == "gpt2 on 8 devices of dgx-a100"
    changes = "document.querySelector('iframe').contentDocument.querySelectorAll('.changes tr')"
    assert browser.run(f"{changes}.length") > 1


def test_moving_a_slider_changes_the_plan(browser, page):
    page()
    before = step(browser)
    choose(browser, batch="8")
    # a fixed share of the small step, as launches, does not grow with the batch
    assert 2 * before < step(browser) < 16 * before
    words = browser.run("document.querySelector('.figure em').textContent")
    assert words.startswith("+")
    inside = "document.querySelector('iframe').contentDocument.body.textContent"
    assert "256 sequences of 512 tokens" in browser.run(inside)


def test_less_memory_leads_to_a_refusal_with_its_reason(browser, page):
    page(f"{SMALL}&exact.devices=2&option.zero=0&option.dp=2")
    assert browser.run("document.getElementById('pin').hidden") is False
    browser.run("explorer.exact.memory = 1; explorer.changed()")
    settled(browser)
    browser.wait_until("document.getElementById('layout').textContent.includes('no plan')")
    assert "no plan: infeasible" in text(browser, "layout")
    assert "memory: " in text(browser, "reason")
    for what in ("pin", "exports"):  # there is nothing to compare, nor to launch
        assert browser.run(f"document.getElementById('{what}').hidden") is True
    browser.run("document.getElementById('reset').click()")
    settled(browser)
    assert "ZeRO-" in text(browser, "layout")


def test_the_new_page_stays_where_the_reader_was(browser, page):
    page()
    browser.run(
        "document.querySelector('iframe').contentWindow.scrollTo({top: 500, behavior: 'instant'})"
    )
    choose(browser, batch="5")
    assert browser.run("document.querySelector('iframe').contentWindow.scrollY") == 500
    assert browser.run("document.querySelectorAll('iframe').length") == 1


def test_a_refused_question_says_why(browser, page):
    page()
    browser.run("explorer.ask({...explorer.question, devices: 0})")
    settled(browser)
    assert "devices: " in text(browser, "faults")
    assert browser.run("document.getElementById('save-plan').hidden") is True


def test_a_config_of_ones_own_can_be_chosen_and_left(browser, page):
    page()
    config = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 999}
    name = "<img src=x onerror=alert(1)>.json"
    browser.run(
        f"(() => {{ const given = new DataTransfer(); "
        f"given.items.add(new File([{json.dumps(json.dumps(config))}], {json.dumps(name)})); "
        f"const input = document.getElementById('config'); input.files = given.files; "
        f"input.dispatchEvent(new Event('change')); }})()"
    )
    browser.wait_until("!document.getElementById('uploaded').hidden")
    settled(browser)
    inside = "document.querySelector('iframe').contentDocument.querySelector('h1').textContent"
    assert browser.run(inside).startswith("config.json on")
    assert name in text(browser, "uploaded")
    assert browser.run("document.querySelectorAll('img').length") == 0
    browser.run("document.getElementById('forget').click()")
    settled(browser)
    assert browser.run(inside).startswith("gpt2 on")
    assert browser.messages == []


def test_plan_and_page_can_be_saved(browser, page, client):
    page()
    for element in ("save-plan", "save-page"):
        link = browser.run(f"document.getElementById('{element}').getAttribute('href')")
        assert client.get(link).status == 200


def test_files_are_saved_for_the_framework_that_is_preselected(browser, page):
    page()
    browser.run(
        "window.saved = []; HTMLAnchorElement.prototype.click = function () "
        "{ saved.push(this.download); }"
    )
    target = browser.run("document.getElementById('target').value")  # one that can run the plan
    browser.run("document.getElementById('export').click()")
    browser.wait_until("window.saved.length === 1")
    assert browser.run("window.saved") == [f"{target}.zip"]
    assert f"saved {target}.zip" in text(browser, "state")


def test_the_theme_reaches_the_page_of_the_plan(browser, page):
    page()
    choose(browser, theme="dark")
    inside = "getComputedStyle(document.querySelector('iframe').contentDocument.body)"
    assert browser.run(f"{inside}.backgroundColor") == f"rgb{rgb(DARK.page)}"
    choose(browser, batch="5")
    assert browser.run(f"{inside}.backgroundColor") == f"rgb{rgb(DARK.page)}"


def test_every_control_can_be_reached_by_keyboard(browser, page):
    page()
    reached = set()
    for _ in range(45):  # the options of the address are open
        browser.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab")
        reached.add(browser.run("document.activeElement.id"))
    controls = {"model", "config", "cluster", "count", "memory", "bandwidth", "batch", "sequence"}
    assert controls | {"framework", "reset", "save-page", "save-plan"} <= reached


def test_the_gap_is_that_of_all_plans_rounded_up(browser, page):
    page()
    for plan, said in (
        ({"status": "optimal", "gap": 0.0}, "0, proved"),
        ({"status": "gap", "gap": 0.01}, "≤ 1.00%"),
        ({"status": "gap", "gap": 0.00801}, "≤ 0.81%"),
        ({"status": "gap", "gap": 0.02}, "≤ 2.00%"),
    ):
        assert browser.run(f"gapOf({json.dumps(plan)})") == said


def test_the_address_holds_what_is_asked_and_back_asks_it_again(browser, page):
    page()
    before = browser.run("location.search")
    choose(browser, batch="6", **{"option-tp": "2"})
    assert "option.tp=2" in browser.run("location.search")
    assert "tensor 2" in text(browser, "layout")
    browser.run(
        "new Promise((done) => { window.addEventListener('popstate', done, { once: true }); "
        "history.back(); }).then(() => null)"
    )
    settled(browser)
    assert browser.run("location.search") == before
    assert browser.run("document.getElementById('option-tp').value") == ""


def test_an_address_is_asked_as_it_stands(browser, page):
    page(f"{SMALL}&option.zero=1&exact.devices=2")
    assert "ZeRO-1" in text(browser, "layout")
    assert re.search(r"\b[12] devices used", text(browser, "layout"))


def option_of_plan(browser, name):
    """What the command of the plan that is shown says of an option."""
    words = browser.run("explorer.command").split()
    return words[words.index(name) + 1] if name in words else None


def test_precision_software_and_constants_of_the_device_change_the_plan(browser, page):
    page(f"{SMALL}&option.dp=8")
    steps = {"": step(browser)}
    for name, value in (
        ("precision", "fp32"),
        ("software", "megatron-core"),
        ("calibration", "none"),
        ("calibration", "llm-foundry"),
    ):
        choose(browser, **{f"option-{name}": value})
        assert text(browser, "faults") == ""
        assert option_of_plan(browser, f"--{name}") == value
        steps[value] = step(browser)
        choose(browser, **{f"option-{name}": ""})
        assert step(browser) == steps[""]
    assert len(set(steps.values())) == len(steps)
    assert browser.messages == []


def test_only_constants_of_the_chosen_devices_are_offered(browser, page):
    offered = (
        "[...document.getElementById('option-calibration').options]"
        ".filter((each) => !each.disabled).map((each) => each.value)"
    )
    page()
    of_a100 = browser.run(offered)
    assert {"", "none", "megatron-2021"} <= set(of_a100)
    choose(browser, **{"option-calibration": "megatron-2021"})
    assert text(browser, "faults") == ""
    choose(browser, cluster="dgx-h100")  # which have none of that line
    assert browser.run("document.getElementById('option-calibration').value") == ""
    of_h100 = browser.run(offered)
    assert {"", "none", "nemo"} <= set(of_h100)
    assert "megatron-2021" not in of_h100
    assert text(browser, "faults") == ""


def test_a_search_says_its_gap_and_is_stopped_with_the_best_so_far(browser, page):
    page()
    told = {"stage": "searching", "elapsed_s": 3, "step_time_s": None, "gap": None}
    browser.run(f"explorer.hear({json.dumps({'told': told})}, 0)")
    assert text(browser, "state") == "searching, 3 s: no plan yet"
    assert browser.run("document.getElementById('stop').hidden") is False
    told |= {"step_time_s": 2.0, "searched_s": 1.75, "gap": 0.125}
    browser.run(f"explorer.hear({json.dumps({'told': told})}, 0)")
    assert text(browser, "state") == "searching, 3 s: best 2 s, gap so far 12.50%"
    told |= {"searched_s": 0.0, "gap": None}
    browser.run(f"explorer.hear({json.dumps({'told': told})}, 0)")
    assert text(browser, "state") == "searching, 3 s: best 2 s, no bound yet"


def test_a_search_is_stopped_with_what_it_has(browser, client):
    asked = "?model=llama3-70b&cluster=dgx-h100&exact.devices=64"
    browser.call("Page.navigate", url=client.address + asked)
    browser.wait_until("document.getElementById('stop')?.hidden === false")
    browser.run("document.getElementById('stop').click()")
    assert text(browser, "state") == "stopping …"
    settled(browser)
    assert text(browser, "layout").startswith("the best so far: tensor ")
    assert browser.run("document.getElementById('longer').hidden") is False


def test_any_number_of_devices_can_be_asked_for(browser, page):
    page()
    choose(browser, count="2")
    assert "exact.devices=2" in browser.run("location.search")
    assert re.search(r"\b[12] devices used", text(browser, "layout"))


def test_a_change_is_tried_by_its_button(browser, page):
    page()
    inside = "document.querySelector('iframe').contentDocument"
    options = browser.run(f"{inside}.querySelector('.copy-command').dataset.options")
    asked = browser.run("location.search")
    browser.run(f"{inside}.querySelector('.copy-command').click()")
    browser.wait_until(f"location.search !== {json.dumps(asked)}")
    settled(browser)
    fields = browser.run("Object.values(explorer.question.options ?? {}).length")
    assert fields or "--memory" in options or "--sequence" in options


def test_a_pinned_plan_stands_beside_the_new_one(browser, page):
    page()
    browser.run("document.getElementById('pin').click()")
    choose(browser, batch="6")
    rows = "[...document.querySelectorAll('#pinned tbody tr')].map((row) => row.textContent)"
    told = browser.run(rows)
    assert any(row.startswith("step") and "+" in row for row in told)
    assert "asked16 × 512 tokens64 × 512 tokens" in told
    browser.run("document.getElementById('compare').click()")
    settled(browser)
    inside = "document.querySelector('iframe').contentDocument.querySelector('h1').textContent"
    assert browser.run(inside) == "Comparison"
    browser.run("document.getElementById('unpin').click()")
    assert browser.run("document.getElementById('pinned').hidden") is True


def test_an_error_never_stands_beside_an_old_answer(browser, page):
    page()
    choose(browser, **{"option-tp": "7"})
    assert text(browser, "faults")
    assert browser.run("document.querySelectorAll('iframe').length") == 0
    assert text(browser, "layout") == ""
    choose(browser, **{"option-tp": ""})
    assert "ZeRO-" in text(browser, "layout")


def test_what_is_to_be_said_beside_an_answer_is_no_fault(browser, page):
    page()
    browser.run("explorer.showNotes(['a pack of five', 'and more'])")
    assert text(browser, "faults") == ""
    assert "2 notes" in text(browser, "notes")
    assert browser.run("document.getElementById('notes').open") is False
    browser.run("explorer.showNotes([])")
    assert browser.run("document.getElementById('notes').hidden") is True


def drop(browser, name, content):
    """A file, anywhere on the page."""
    browser.run(
        "(() => { const given = new DataTransfer(); "
        f"given.items.add(new File([{json.dumps(content)}], {json.dumps(name)})); "
        "window.dispatchEvent(new DragEvent('drop', {dataTransfer: given})); })()"
    )
    browser.wait_until(
        f"document.getElementById('uploaded').textContent.includes({json.dumps(name)})"
    )
    settled(browser)


def test_the_file_of_a_job_is_dropped_anywhere(browser, page, request):
    page()
    job = request.config.rootpath / "examples" / "megatron_job.sh"
    drop(browser, job.name, job.read_text(encoding="utf-8"))
    assert browser.run("document.getElementById('option-tp').value") == "4"
    assert browser.run("explorer.question.global_batch") == 64
    assert browser.run("explorer.plan.parallelism.tensor") == 4
    assert "megatron_job.sh" in text(browser, "asked-line")
    browser.run("document.getElementById('forget').click()")
    settled(browser)
    assert "gpt2" in text(browser, "asked-line")


def test_back_asks_for_the_file_again_and_a_link_says_which_one_it_lacks(browser, page, request):
    page()
    job = request.config.rootpath / "examples" / "megatron_job.sh"
    drop(browser, job.name, job.read_text(encoding="utf-8"))
    choose(browser, model="bert-large")
    assert text(browser, "uploaded").strip() == "Use the catalog"
    browser.run(
        "new Promise((done) => { window.addEventListener('popstate', done, { once: true }); "
        "history.back(); }).then(() => null)"
    )
    settled(browser)
    assert "megatron_job.sh" in text(browser, "asked-line")
    assert "tensor 4" in text(browser, "layout")
    page(browser.run("location.search"))  # as whoever was sent the link
    assert "megatron_job.sh: only its name is in the address" in text(browser, "faults")
    assert browser.run("document.querySelectorAll('iframe').length") == 0


def test_a_file_that_is_no_job_is_refused_and_nothing_else_is_answered(browser, page):
    page()
    browser.run(
        "(() => { const given = new DataTransfer(); "
        "given.items.add(new File(['hello'], 'letter.sh')); "
        "window.dispatchEvent(new DragEvent('drop', {dataTransfer: given})); })()"
    )
    browser.wait_until("document.getElementById('faults').textContent !== ''")
    browser.run("new Promise((done) => setTimeout(done, 400)).then(() => null)")
    settled(browser)
    assert text(browser, "faults").startswith("letter.sh: is not known by its content")
    assert browser.run("document.querySelectorAll('iframe').length") == 0
    choose(browser, batch="5")
    assert text(browser, "faults") == ""
    assert "ZeRO-" in text(browser, "layout")


def test_a_cluster_of_ones_own_is_dropped_anywhere(browser, page):
    page()
    level = '[[level]]\nname = "link"\nsize = 4\nbandwidth_bytes_per_s = 100e9\nlatency_s = 3e-6\n'
    drop(browser, "mine.toml", level)
    assert "mine.toml" in text(browser, "uploaded")
    assert "device_kind" in text(browser, "faults")  # and nothing of the old answer is left
    assert text(browser, "layout") == ""
    drop(browser, "mine.toml", f'device_kind = "H100-80GB-SXM"\n{level}')
    choose(browser, count="4")
    assert text(browser, "faults") == ""
    memory = browser.run("document.querySelector('output[for=memory]').textContent")
    assert memory == "as in mine.toml"
    assert "of mine.toml" in text(browser, "asked-line")
    assert "ZeRO-" in text(browser, "layout")


def test_sliders_say_their_values_and_every_control_has_a_name(browser, page):
    page()
    said = browser.run(
        "Object.fromEntries([...document.querySelectorAll('input[type=range]')]"
        ".map((each) => [each.id, each.getAttribute('aria-valuetext')]))"
    )
    assert said["devices"] == "8 devices"
    assert said["memory"].endswith(" GiB")
    assert said["bandwidth"].endswith(" GB/s")
    assert said["batch"] == "16 sequences"
    unnamed = browser.run(
        "[...document.querySelectorAll('input, select, button')].filter((each) => "
        "!each.labels?.length && !each.getAttribute('aria-label') && !each.textContent.trim())"
        ".map((each) => each.id)"
    )
    assert unnamed == []


def test_the_answer_is_on_the_first_screen_of_a_phone(browser, page):
    page(width=390, height=844)
    assert browser.run("document.getElementById('asked').open") is False
    bottom = "document.getElementById('layout').getBoundingClientRect().bottom"
    assert browser.run(bottom) < 844
