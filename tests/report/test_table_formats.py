"""Every format of a table holds the same figures and marks, whatever the names, and is whole where it ends up."""

import csv
import io
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest
from rich.console import Console

from sirc.experiment.results import read_results, write_results
from sirc.report.tables import save_tables, table
from support.table_results import paper_results, several_seeds

HOSTILE = "a_b%|</script>&#{}~^\\$*`é"
COMMANDS = re.findall(
    r"\w+",
    "documentclass usepackage begin end centering caption sbox ifdim wd textwidth resizebox usebox else fi toprule "
    "cmidrule bottomrule textbf underline scriptsize multicolumn multirow rotatebox shortstack times surd "
    "mathcal mathbf pm "
    "uparrow downarrow times cdot textbackslash textasciitilde textasciicircum textbar textless textgreater textendash",
)
TEX = next(filter(None, map(shutil.which, ("pdflatex", "tectonic", "lualatex"))), None)


def has_tex():
    """Whether there is a TeX that has, or fetches, the packages of the document."""
    if TEX is None or "tectonic" in TEX:
        return TEX is not None
    return subprocess.run(["kpsewhich", "multirow.sty"], capture_output=True).returncode == 0


def hostile_results():
    swap = {"net": HOSTILE, "other net": "Zoë's net", "energy": HOSTILE, "far": HOSTILE}
    return several_seeds().replace({"model": swap, "score": swap, "negative": swap})


MADE = {
    "paper": table(paper_results()),
    "mean": table(several_seeds()),
    "spread": table(several_seeds(), spread=True),
    "hostile": table(hostile_results()),
    "hostile spread": table(hostile_results(), spread=True),
    "one metric": table(several_seeds(), metrics="auroc", scores=["sirc(msp, l1)"]),
}


@pytest.fixture(params=MADE.values(), ids=MADE.keys())
def made(request):
    return request.param


def figures_of(made, model, score, negatives=None):
    """Marks and numbers of a row as they must be shown, from the tidy cells."""
    cells = [made.cell(model, score, n, k) for n in negatives or made.negatives_of(model) for k in made.metrics]
    return [(c.mark, f"{100 * c.mean:.2f}", f"±{100 * c.two_std:.1f}" if made.spread else "") for c in cells]


def read(cells, pattern, words):
    found = [re.fullmatch(pattern, cell) for cell in cells]
    return [(words[m[1]], m[2], f"±{m[3]}" if m[3] else "") for m in found]


def test_markdown_reads_back_as_the_cells(made):
    blocks = [block.splitlines() for block in made.markdown().strip().split("\n\n")]
    tables = [block for block in blocks if block[0].startswith("|")]
    assert len(tables) == len(made.models)
    for model, lines in zip(made.models, tables, strict=True):
        rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
        width = 1 + len(made.metrics) * len(made.negatives_of(model))
        assert {len(row) for row in rows} == {width}
        assert rows[1] == ["---"] + ["---:"] * (width - 1)
        for score, row in zip(made.scores_of(model), rows[2:], strict=True):
            pattern = r"(\*\*|<u>|)([\d.]+)(?: ±([\d.]+))?(?:\*\*|</u>|)"
            words = {"**": "bold", "<u>": "underline", "": ""}
            assert read(row[1:], pattern, words) == figures_of(made, model, score)


@pytest.mark.parametrize("link", ["[x](http://evil.example)", "https://evil.example", "WWW.evil.example", "<http://e>"])
def test_markdown_makes_no_link_of_a_name(link):
    text = table(several_seeds().replace({"model": {"net": link}})).markdown()
    assert not re.search(r"(?i)(?<!\\)\]\(|[a-z]://|(?<![\w])www\.", text)


def test_csv_has_no_formulas_and_results_come_back(tmp_path):
    results = several_seeds().replace({"model": {"net": "=HYPERLINK(0)"}, "negative": {"far": "@far"}})
    cells = list(csv.reader(io.StringIO(table(results).csv())))
    assert {"'=HYPERLINK(0)", "'@far"} <= {cell for row in cells for cell in row}
    write_results(results, tmp_path / "results.csv")
    assert "\n'=HYPERLINK(0)," in (tmp_path / "results.csv").read_text(encoding="utf-8")
    assert set(read_results(tmp_path / "results.csv")["negative"]) >= {"@far"}
    assert set(read_results(tmp_path / "results.csv")["model"]) >= {"=HYPERLINK(0)"}


def test_markdown_shows_a_hostile_name_as_it_is():
    assert r"| a\_b%\|&lt;/script&gt;&amp;#{}\~^\\\$\*\`é |" in MADE["hostile"].markdown()


def test_html_reads_back_as_the_cells(made):
    page = Page(made.html(page=True))
    assert page.open == []
    assert page.scripts == 0
    assert page.text.count("positive class") == 1
    rows = iter(page.rows)
    for part in made.parts():
        heads, metrics = next(rows), next(rows)
        assert [scope for _, scope, _, _ in heads] == ["col"] + ["colgroup"] * len(part.negatives)
        assert len(metrics) == sum(span for *_, span in heads[1:]) == len(made.metrics) * len(part.negatives)
        for model in part.models:
            ((name, scope, _, span),) = next(rows)
            assert (scope, span) == ("rowgroup", 1 + len(metrics))
            assert name.startswith(f"{model}, ID %error: {100 * made.of_id[model]['error'][0]:.2f}")
            for score in made.scores_of(model):
                head, *cells = next(rows)
                assert head[1] == "row"
                values = [(mark, *re.fullmatch(r"([\d.]+) ?(±[\d.]+|)", text).groups()) for text, _, mark, _ in cells]
                assert values == figures_of(made, model, score)
    assert next(rows, None) is None


def test_latex_reads_back_as_the_cells(made):
    source = made.latex(document=True)
    check_latex(source)
    assert made.latex().split(r"\begin{table}", 1)[1] in source
    bodies = re.findall(r"\\begin\{tabular\}\{(\w+)\}\n(.*?)\\end\{tabular\}", source, re.DOTALL)
    for part, (columns, body) in zip(made.parts(12, 54), bodies, strict=True):
        rows = [line.removesuffix(r" \\").split(" & ") for line in body.splitlines() if line.endswith(r"\\")]
        assert {len(row) for row in rows[1:]} == {len(columns)}
        spans = [int(re.match(r"\\multicolumn\{(\d+)\}", cell)[1]) for cell in rows[0][3:]]
        assert 3 + sum(spans) == len(columns)
        assert {int(end) for end in re.findall(r"\\cmidrule\{\d+-(\d+)\}", body)} == {len(columns)}
        wanted = [(model, score) for model in part.models for score in made.scores_of(model)]
        for (model, score), row in zip(wanted, rows[2:], strict=True):
            pattern = r"(\\textbf\{|\\underline\{|)([\d.]+)(?: \{\\scriptsize \$\\pm\$([\d.]+)\})?\}?"
            words = {r"\textbf{": "bold", r"\underline{": "underline", "": ""}
            assert read(row[3:], pattern, words) == figures_of(made, model, score, part.negatives)


@pytest.mark.skipif(not has_tex(), reason="no TeX with multirow is installed; the document is parsed by the test above")
def test_latex_compiles(made, tmp_path):
    path = made.save(tmp_path / "table.tex")
    options = [] if "tectonic" in TEX else ["-interaction=nonstopmode", "-halt-on-error"]
    done = subprocess.run([TEX, *options, path.name], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert path.with_suffix(".pdf").stat().st_size > 0


def test_rows_of_the_paper_have_its_groups_at_the_left():
    source = MADE["paper"].latex()
    left = (
        r"\multirow{16}{*}{\rotatebox[origin=c]{90}{\shortstack[l]{\textbf{ResNet-50 (ImageNet-200)} \\ "
        r"ID \%error: 19.01}}} & \multirow{6}{*}{\rotatebox[origin=c]{90}{\textbf{SIRC}}} & (MSP, $\|\mathbf{z}\|_1$) &"
    )
    assert source.count(left) == 2  # the sets are too many for one table
    assert "\\cmidrule(r){2-5} \\cmidrule{6-15}\n &  & MSP & \\underline{90.41}" in source


@pytest.mark.slow
@pytest.mark.parametrize("width", [10, 80, 200])
def test_plain_text_reads_back_as_the_cells_at_any_width(made, width):
    lines = made.text(width).splitlines()
    assert width == 10 or max(map(len, lines)) <= width
    words = {"*": "bold", "_": "underline", "": ""}
    found = [re.findall(r"(?<= )([*_]?)(\d+\.\d\d)(?: +(±[\d.]+))?(?![^ ])", line) for line in lines]
    rows = [row for row, line in zip(found, lines, strict=True) if row and "%error" not in line]
    rows = iter([[(words[mark], value, spread) for mark, value, spread in row] for row in rows])
    heads = [line for line in lines if line.strip().startswith("Method")]
    for part in made.parts(columns=heads[0].count("%")):
        for model in part.models:
            for score in made.scores_of(model):
                assert next(rows) == figures_of(made, model, score, part.negatives)
    assert next(rows, None) is None


def test_a_terminal_gets_bold_and_underlined_and_a_pipe_signs():
    small = table(paper_results(), scores=["msp", "vim"], negatives="Noise")
    shown = {}
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=100)
        console.print(small)
        shown[terminal] = console.file.getvalue()
    assert "\x1b[1m99.82\x1b[0m" in shown[True]
    assert "\x1b[4m89.33\x1b[0m" in shown[True]
    assert "*99.82" not in shown[True]
    assert "*99.82" in shown[False]
    assert "_89.33" in shown[False]
    assert "\x1b" not in shown[False]


def test_csv_holds_the_unrounded_cells(made):
    rows = list(csv.DictReader(io.StringIO(made.csv())))
    assert len(rows) == len(made.cells)
    for row in rows:
        cell = made.cell(row["model"], row["score"], row["negative"], row["metric"])
        assert (float(row["mean"]), int(row["runs"]), row["mark"]) == (cell.mean, cell.runs, cell.mark)
        assert float(row["id_error"]) == made.of_id[row["model"]]["error"][0]


def test_the_suffix_is_the_format(tmp_path):
    made = MADE["hostile spread"]
    wanted = {".csv": made.csv(), ".md": made.markdown(), ".txt": made.text()}
    wanted |= {".html": made.html(page=True), ".tex": made.latex(document=True)}
    for suffix, content in wanted.items():
        path = made.save(tmp_path / "new folder" / f"x{suffix}")
        assert path.read_bytes().decode() == content
        with pytest.raises(FileExistsError, match="overwrite=True"):
            made.save(path)
        made.save(path, overwrite=True)
    with pytest.raises(ValueError, match=r"end in \.csv, \.md, \.html, \.tex, \.txt; got '.*x\.pdf'"):
        made.save(tmp_path / "x.pdf")
    assert sorted(p.suffix for p in (tmp_path / "new folder").iterdir()) == sorted(wanted)


def test_the_tables_of_a_study_are_written_together_or_not_at_all(tmp_path):
    paths = save_tables(several_seeds(), tmp_path)
    assert [path.name for path in paths] == ["table.md", "table.tex", "table.html", "table.csv"]
    for path in paths[:-1]:
        path.unlink()
    with pytest.raises(FileExistsError, match=r"table\.csv"):
        save_tables(several_seeds(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]
    save_tables(MADE["spread"], tmp_path, overwrite=True)
    assert "±" in paths[0].read_text(encoding="utf-8")


class Page(HTMLParser):
    """The rows of all tables as (text, scope, mark, colspan), and what was left open."""

    def __init__(self, source):
        super().__init__()
        self.rows, self.text, self.open, self.cell, self.scripts = [], "", [], None, 0
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.scripts += tag == "script"
        if tag != "meta":
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.cell = ["", given.get("scope"), "", int(given.get("colspan", 1))]
        if tag in ("b", "u") and self.cell:
            self.cell[2] = {"b": "bold", "u": "underline"}[tag]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self.rows[-1].append(tuple(self.cell))
            self.cell = None

    def handle_data(self, data):
        self.text += data
        if self.cell:
            self.cell[0] += data


def check_latex(source):
    """What a compiler would stop at: unknown commands, what is left open."""
    assert set(re.sub(r"[\x00-\x7F]", "", source)) <= set("éë")
    assert set(re.findall(r"\\([A-Za-z]+)", source.replace(r"\\", ""))) <= set(COMMANDS)
    depth, opened = 0, []
    for token in re.findall(r"\\(?:begin|end)\{\w+\}|\\.|[{}]", source, re.DOTALL):
        if token.startswith(r"\begin"):
            opened.append(token[7:-1])
        elif token.startswith(r"\end"):
            assert opened.pop() == token[5:-1]
        depth += {"{": 1, "}": -1}.get(token, 0)
        assert depth >= 0
    assert depth == 0
    assert opened == []
    bare = re.sub(r"\\.", "", source)
    assert bare.count("$") % 2 == 0
    assert not re.search(r"[#~^]", bare)
