from __future__ import annotations

from hotset.bench.markdown import markdown_table


def test_columns_are_as_wide_as_their_widest_cell_and_numbers_are_set_to_the_right():
    assert markdown_table(["name", "t/s", "note"], [["a | b", "1.50 ± 0.10", ""], ["c", "-", "far off"]]) == (
        "| name   |         t/s | note    |\n"
        "| ------ | ----------: | ------- |\n"
        "| a \\| b | 1.50 ± 0.10 |         |\n"
        "| c      |           - | far off |\n"
    )


def test_a_table_without_rows_is_its_header():
    assert markdown_table(["a", "long name"], []) == "| a   | long name |\n| --- | --------- |\n"
