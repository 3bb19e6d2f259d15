"""The measuring method of benchmarks/, and its scripts at sizes of a second. No duration is asserted."""

import ast
import functools
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import size
from benchmarks.performance import head, scaling
from benchmarks.shared import timing
from composing import ROOT
from processes import CONTEXT


@pytest.fixture
def forked(monkeypatch):
    """Fresh processes are forked: they would import torch for seconds."""
    monkeypatch.setattr(timing, "get_context", lambda method: CONTEXT)


@pytest.fixture
def printed(forked, monkeypatch, capsys):
    """What a script prints."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # which the script sets for its processes

    def run(script, *arguments):
        monkeypatch.setattr(sys, "argv", [script.__name__, *arguments])
        script.main()
        return capsys.readouterr().out

    return run


def test_a_median_above_1_3_times_the_minimum_withholds_the_verdict():
    steady, noisy = timing.Timing((1.0, 1.3, 9.0)), timing.Timing((1.0, 1.31, 1.31))
    assert timing.ratio(steady, timing.Timing((2.0, 2.0, 2.0))) == "0.50"
    assert timing.ratio(steady, noisy) == timing.ratio(noisy, steady) == timing.WITHHELD
    assert timing.verdict(0.5, 1.0, steady=noisy.is_steady) == timing.WITHHELD
    # A bar holds at the bar itself.
    assert [timing.verdict(value, 1.0) for value in (1.0, 1.01)] == ["holds (bar 1)", "MISSED (bar 1)"]


def test_variants_take_turns_after_one_warm_up_each():
    calls = []
    found = timing.interleave({name: lambda name=name: calls.append(name) for name in "ab"}, rounds=3)
    assert calls == ["a", "b"] * 4
    assert [len(found[name].seconds) for name in "ab"] == [3, 3]


def test_the_exponent_of_a_power_law_is_its_power():
    # cost = 3·n²
    assert timing.exponent([1, 2, 4, 10], [3, 12, 48, 300]) == pytest.approx(2.0)
    assert timing.exponent([1, 2, 4, 8], [5, 5, 5, 5]) == pytest.approx(0.0)


def matmul():
    h, weight = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    return timing.count(lambda: (h @ weight.T).sum().backward(), [weight])


def in_place():
    total = torch.zeros(4, 5)
    return timing.count(lambda: total.addmm_(torch.ones(4, 3), torch.ones(3, 5)), [])


def attention(backward):
    query = torch.randn(1, 2, 6, 8, requires_grad=True)
    output = functools.partial(torch.nn.functional.scaled_dot_product_attention, query, query, query)
    return timing.count((lambda: output().sum().backward()) if backward else lambda: output(is_causal=True), [])


@pytest.mark.parametrize(
    ("count", "flops"),
    [
        (matmul, 6 * 4 * 3 * 5),  # a product and its two gradients
        (in_place, 2 * 4 * 3 * 5),
        # scores and weighted values forward, 4·heads·queries·keys·width; five such products against two backward
        (lambda: attention(backward=False), 4 * 2 * 6 * 6 * 8),
        (lambda: attention(backward=True), 4 * 2 * 6 * 6 * 8 * 7 // 2),
    ],
)
def test_flops_are_counted_forward_backward_and_in_place(count, flops):
    assert count().flops == flops


class GrowsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sum()

    @staticmethod
    def backward(ctx, grad):
        return torch.ones(7, 11).sum() * grad.expand(3)


def test_the_largest_tensor_is_found_in_both_directions_but_for_views_and_what_is_shaped_like_a_parameter():
    assert matmul().largest_tensor == 20  # h·Wᵀ, whose gradients hold 12 and 15
    x, big = torch.ones(3, requires_grad=True), torch.zeros(1000)
    assert timing.count(lambda: GrowsBackward.apply(x).backward(), []).largest_tensor == 77
    assert timing.count(lambda: (big.view(10, 100)[2], torch.zeros(1000)), [big]).largest_tensor == 0


def allocate(num_held, num_dropped):
    def action():
        torch.ones(num_dropped).sum()
        return [torch.ones(num_held)]

    return action


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the kernel's account of the process")
def test_the_extra_peak_is_what_was_dropped_not_what_stays(forked):
    # 64 MB dropped before 16 MB are kept: at its highest the process held 64 MB more, of which 16 MB do not count
    found = timing.extra_peak_bytes(allocate, 4_000_000, 16_000_000)
    assert 45e6 < found < 60e6


def test_positions_through_the_backbone_are_counted_per_forward():
    embeddings = torch.nn.Embedding(10, 4)
    with timing.counted_positions(embeddings) as positions:
        embeddings(torch.zeros(2, 3, dtype=torch.long))
        embeddings(torch.zeros(5, dtype=torch.long))
    embeddings(torch.zeros(1, dtype=torch.long))
    assert positions == [6, 5]


MODULES = {
    "__init__": "",
    "start": "import torch\nfrom house.room import door\nif TYPE_CHECKING:\n    import house.types",
    "room/__init__": "",
    "room/door": "def late():\n    from house import key",
    "key": "",
    "types": "",
    "cellar": "",
}
FUNCTION = """
def walk(self, *steps, far=1, **others):
    left, (right, _) = steps
    for step in steps:
        total += [each for each in step]
    with far as there:
        return total
"""


def test_imports_are_followed_through_functions_and_not_for_type_checkers(tmp_path):
    for name, text in MODULES.items():
        path = tmp_path / "house" / f"{name}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    found = {path.relative_to(tmp_path / "house").as_posix() for path in size.imported_files(tmp_path, "house.start")}
    assert found == {"__init__.py", "start.py", "room/__init__.py", "room/door.py", "key.py"}


def test_names_of_a_function_are_its_parameters_and_what_it_binds():
    (function,) = ast.parse(FUNCTION).body
    names = {"self", "steps", "far", "others", "left", "right", "_", "step", "total", "each", "there"}
    assert size.local_names(function) == names


def test_lines_are_counted_once_for_each_option_and_once_for_any():
    found = size.lines_by_option(["critic, critic and Probe", "a probability", "if self.averaging:", "importance"])
    some = {"critic": 1, "probes": 1, "averaging": 1, "importance": 1}
    assert found == dict.fromkeys(size.OPTIONS, 0) | some | {"any": 3}


def test_the_size_of_this_checkout_has_a_row_for_each_measure():
    rows = dict(size.static_rows(ROOT))
    assert {"lines of src/apo_lightning", "names in microbatch_loss", "commands", "docs"} <= rows.keys()
    assert int(rows["names in microbatch_loss"]) > 0
    assert "train" in rows["commands"]


@pytest.mark.slow
def test_the_head_benchmark_prints_a_row_a_variant(printed):
    page = printed(head, "--tokens=48", "--hidden=16", "--vocab=256", "--anchors=2", "--rounds=1")
    rows = {cells[1].strip(): cells for line in page.splitlines() if len(cells := line.split("|")) > 2}
    assert {"naive", "ours", "ours, all tokens at once"} <= rows.keys()
    # FLOP over T·V·D: three products, since so few logits are all held for the backward
    assert [float(rows[name][8]) for name in ("naive", "ours", "ours, all tokens at once")] == [6.0, 6.0, 6.0]
    assert float(rows["ours"][7]) < 1e-5


@pytest.mark.long
@pytest.mark.slow(30)
def test_the_scaling_benchmark_fits_every_axis(printed):
    page = printed(scaling, "--tiny", "--rounds=1")
    for axis in ("ours: T", "ours: V", "ours: K", "ours: D", "group size", "completion length"):
        assert f"\n| {axis} | " in page
