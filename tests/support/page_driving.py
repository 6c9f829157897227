"""Hands and eyes on an open page: what its controls and tables say, and how a reader moves them."""

import re

UNDRAWN = """
    const give = (plot, data, layout) => Promise.resolve(Object.assign(plot, { data, layout, on() {} }));
    let library;
    Object.defineProperty(window, "Plotly", {
        get: () => library,
        set: (found) => { library = { ...found, newPlot: give, react: give }; },
    });
"""
"""A script for a page whose plots have their data and no picture: drawing takes most of its time."""


def settle(page):
    """Wait until what was changed is drawn, whole."""
    page.evaluate(
        """() => new Promise((done) => { let frames = 0; const look = () => { frames += 1;
            if (frames > 2 && !("busy" in document.documentElement.dataset)) done();
            else requestAnimationFrame(look); }; look(); })"""
    )


def read_table(page, table="ranked"):
    """Give {score: {column: value}}, the rows in their order."""
    rows = page.evaluate(
        """(id) => [...document.querySelectorAll(`#${id} tbody tr[data-score]`)].map((row) => [row.dataset.score,
            [...row.querySelectorAll("[data-column][data-value]")].map((c) => [c.dataset.column, c.dataset.value])])""",
        table,
    )
    return {score: {column: float(value) for column, value in cells} for score, cells in rows}


def read_controls(page):
    """Give the state of every control, by its place in the page."""
    return page.evaluate(
        """() => [...document.querySelectorAll("input, select, button[aria-pressed]")].map((c) =>
            [c.id || c.name, c.type, c.type === "checkbox" || c.type === "radio" ? c.checked : c.value,
             c.getAttribute("aria-pressed")])"""
    )


def read_map(page):
    """Give the map's centres of α and β, and [winner, value, runner-up, margin, within noise] by β and α."""
    trace = page.evaluate(
        """() => { const { x, y, customdata } = document.querySelector("#map").data[0];
            const cells = [...customdata].map((row) => [...row].map((cell) => [...cell]));
            return { x: [...x], y: [...y], cells }; }"""
    )
    return trace["x"], trace["y"], trace["cells"]


def read_setting(page):
    """Give α, β and the recall as the sliders have them."""
    alpha, beta = (float(page.input_value(f"#{name}-number")) for name in ("alpha", "beta"))
    recall = float(re.fullmatch(r"([\d.]+)%", page.get_attribute("#recall", "aria-valuetext"))[1]) / 100
    return {"alpha": alpha, "beta": beta, "recall": round(recall, 6)}


def enter(page, number, value):
    """Type a number into its field."""
    page.fill(f"#{number}-number", str(value))
    page.press(f"#{number}-number", "Enter")
    settle(page)


def drag(page, slider, to, *, steps=2):
    """Take a slider's knob with the mouse, bring it to a share of its way and let go."""
    knob = page.locator(slider)
    knob.scroll_into_view_if_needed()
    now = knob.evaluate("(s) => (s.value - s.min) / (s.max - s.min)")
    box = knob.bounding_box()
    half = box["height"] / 2  # the knob is about as wide as it is high, and does not leave the slider

    def place(share):
        return box["x"] + half + share * (box["width"] - 2 * half), box["y"] + box["height"] / 2

    page.mouse.move(*place(now))
    page.mouse.down()
    for step in range(1, steps + 1):
        page.mouse.move(*place(now + (to - now) * step / steps))
    page.mouse.up()
    settle(page)


def follow(page, setting):
    """Follow a link to another setting of the same page."""
    page.evaluate("(setting) => { location.hash = setting; }", setting)
    settle(page)


def go(page, setting):
    """Bring a page that another test has used to a setting, whatever its address says at the moment."""
    page.evaluate(
        """(setting) => { document.activeElement.blur(); history.replaceState(null, "", `#${setting}`);
            dispatchEvent(new HashChangeEvent("hashchange")); scrollTo(0, 0); }""",
        setting,
    )
    settle(page)


def overflowing(page):
    """Give how far the page is wider than the window, and the elements that stick out of it."""
    return page.evaluate(
        """() => { const root = document.scrollingElement; const wide = root.clientWidth;
            const free = (e) => { for (let p = e.parentElement; p; p = p.parentElement)
                if (["auto", "scroll", "hidden", "clip"].includes(getComputedStyle(p).overflowX) && p !== document.body)
                    return false; return true; };
            const out = [...document.querySelectorAll("body *")].filter((e) => { const box = e.getBoundingClientRect();
                return e.checkVisibility() && box.width && box.height && box.right > wide + 1 && free(e); });
            return [root.scrollWidth - wide, out.map((e) => e.outerHTML.slice(0, 120))]; }"""
    )


def cut_off(page):
    """Give the controls, headings and cells whose text does not fit in them."""
    return page.evaluate(
        """() => [...document.querySelectorAll("button, label, legend, summary, h1, h2, th, td, output, p")]
            .filter((e) => e.checkVisibility() && getComputedStyle(e).overflowX !== "visible")
            .filter((e) => e.scrollWidth > e.clientWidth + 1)
            .map((e) => e.outerHTML.slice(0, 120))"""
    )
