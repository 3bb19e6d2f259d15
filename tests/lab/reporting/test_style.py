"""Every method looks like itself everywhere, in colour and in grey."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from apo_lab.reporting.names import METHODS
from apo_lab.reporting.style import KNOWN, styles_of

PAPERS = ["Base", "GRPO", "NSR", "GRPO-KL", "GRPO-KL (error-only)", "APO"]
names = st.lists(st.text(alphabet="abcxyz_0", min_size=1, max_size=6), max_size=20)


def lightness(color):
    """CIE L* of `#rrggbb` in sRGB under D65, from its definition."""
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * luminance ** (1 / 3) - 16


def test_every_algorithm_of_the_project_has_a_style_and_no_two_share_marker_and_dash():
    assert set(KNOWN) == set(METHODS.values())
    looks = [(style.marker, style.dash) for style in KNOWN.values()]
    assert len(set(looks)) == len(looks)


def test_the_papers_methods_have_six_colors_and_markers_and_stay_apart_in_a_grey_print():
    styles = [KNOWN[name] for name in PAPERS]
    # Points of a scatter plot have no dash: there the marker alone must do.
    assert len({style.marker for style in styles}) == len({style.color for style in styles}) == len(PAPERS)
    ordered = sorted(lightness(style.color) for style in styles)
    assert min(high - low for low, high in itertools.pairwise(ordered)) >= 5
    # The two that a reader compares are the darkest, and dark enough for lines on white.
    darkest = sorted(PAPERS, key=lambda name: lightness(KNOWN[name].color))[:2]
    assert darkest == ["APO", "GRPO"]


@given(names)
def test_unknown_methods_get_looks_of_their_own_whatever_the_order(methods):
    styles = styles_of([*methods, "APO", "GRPO"])
    assert styles == styles_of(["GRPO", *reversed(methods), "APO", "APO"])
    looks = [(style.marker, style.dash) for style in styles.values()]
    assert len(set(looks)) == len(looks)
    assert styles["APO"].color == KNOWN["APO"].color
    assert max(styles.values(), key=lambda style: style.rank).label == "APO"
