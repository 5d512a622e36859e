"""Pages that are made of other files are made again, and a figure changed by hand is told."""

from benchmarks.renew import PAGES, RESULTS, differing


def test_renew__tells_of_a_figure_changed_by_hand(tmp_path):
    for name in PAGES:
        page = (RESULTS / f"{name}.md").read_text(encoding="utf-8")
        made = tmp_path / f"{name}.md"
        lines = page.splitlines()
        lines[4] = "another machine"
        made.write_text("\n".join(lines), encoding="utf-8")
        assert differing(RESULTS / f"{name}.md", made) == ""
        row = max(k for k, line in enumerate(lines) if "0." in line)
        changed = lines[row].replace("0.", "1.", 1)
        made.write_text("\n".join([*lines[:row], changed, *lines[row + 1 :]]), encoding="utf-8")
        assert differing(RESULTS / f"{name}.md", made).startswith(f"{name}.md: |")
        made.write_text("\n".join(lines[:-1]), encoding="utf-8")
        assert "number of lines" in differing(RESULTS / f"{name}.md", made)
