from __future__ import annotations

import numpy as np
import pytest

from hotset.errors import FileError, InputError
from hotset.experts.trace import Trace


def trace_of(tmp_path, text, **options):
    (tmp_path / "picks.csv").write_text(text)
    return Trace.read(tmp_path / "picks.csv", **options)


def test_one_line_is_one_pick(tmp_path):
    trace = trace_of(tmp_path, "layer,token,expert\n0,0,3\n0,0,1\n1,0,2\n1,0,0\n0,1,1\n0,1,2\n1,1,3\n1,1,0\n")
    assert trace.experts.tolist() == [[[3, 1], [2, 0]], [[1, 2], [3, 0]]]
    assert (trace.offsets.tolist(), trace.n_experts) == ([0, 2], 4)


def test_order_of_lines_columns_and_numbers_does_not_matter(tmp_path):
    text = "weight, Expert ,token,note,layer\n0.5,7,30,0,9\n0.1,2,10,0,4\n0.9,5,30,0,4\n1,6,10,0,9\n"
    trace = trace_of(tmp_path, text)
    assert trace.experts.tolist() == [[[2], [6]], [[5], [7]]]


def test_answers_are_told_apart_by_request(tmp_path):
    trace = trace_of(tmp_path, "request,layer,token,expert\n1,0,0,3\n0,0,0,1\n0,0,1,2\n1,0,1,0\n1,0,2,0\n")
    assert trace.experts[:, 0, 0].tolist() == [1, 2, 3, 0, 0]
    assert trace.offsets.tolist() == [0, 2, 5]


def test_the_number_of_experts_may_be_given(tmp_path):
    text = "layer,token,expert\n0,0,3\n"
    assert trace_of(tmp_path, text, n_experts=64).n_experts == 64
    for wrong in (2, 0, -1, 1 << 20):
        with pytest.raises(InputError, match=f"--experts {wrong}: the highest number in .* is 3; give 4 to 65,536"):
            trace_of(tmp_path, text, n_experts=wrong)


def test_what_numpy_writes_is_read(tmp_path):
    rng = np.random.default_rng(0)
    experts = np.array([[rng.permutation(9)[:3] for _ in range(4)] for _ in range(20)])
    token, layer, _ = np.indices(experts.shape)
    lines = [f"{t},{layer_},{e}" for t, layer_, e in zip(token.ravel(), layer.ravel(), experts.ravel(), strict=True)]
    assert np.array_equal(trace_of(tmp_path, "token,layer,expert\n" + "\n".join(lines)).experts, experts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n0,0,0\n", "column layer"),
        ("layer,token\n0,0\n", "column expert"),
        ("layer,token,expert\n", "has no picks"),
        ("layer,token,expert\n0,0\n", "cannot be read"),
        ("layer,token,expert\n0,0,x\n", "cannot be read"),
        ("layer,token,expert\n0,0,99999999999999999999999\n", "cannot be read"),
        ("layer,token,expert\n0,0,1.5\n", "cannot be read"),
        ("layer,token,expert\n0,0,1\n0,1,1\n0,1,2\n", "same number of picks"),
        ("layer,token,expert\n0,0,1\n1,0,1\n0,1,2\n0,1,3\n", "same number of picks"),
        ("layer,token,expert\n0,0,1\n0,0,1\n", "same expert twice"),
        ("layer,token,expert\n0,0,-1\n", "go from -1"),
        ("layer,token,expert\n0,0,99999999999\n", "100,000,000,000 experts; 1 to 65,536 are possible"),
    ],
)
def test_csv_that_makes_no_sense_is_refused(tmp_path, text, message):
    with pytest.raises(FileError, match=message) as caught:
        trace_of(tmp_path, text)
    assert "picks.csv" in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "picks.csv").write_bytes(b"\xff\xfe\x00layer")
    with pytest.raises(FileError, match="cannot be read"):
        Trace.read(tmp_path / "picks.csv")
