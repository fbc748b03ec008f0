"""Numbers of any locale: read back exactly, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envcompare.errors import ProfileError
from envcompare.profile_files.rawfiles import decide, is_missing, read_unit

LOCALES = {
    "C": ("", "."),
    "C with a comma": ("", ","),
    "en_US": (",", "."),
    "de_DE": (".", ","),
    "fr_FR": ("\u202f", ","),
    "sv_SE": ("\u00a0", ","),
    "de_CH": ("'", "."),
}
READ = ("C", "de_DE", "en_US")
COUNTS = st.integers(min_value=0, max_value=10**13)


def written(whole: int, decimals: str, locale: str) -> str:
    """Return a number as a program prints it in a locale."""
    group, point = LOCALES[locale]
    text = f"{whole:,}".replace(",", group)
    return f"{text}{point}{decimals}" if decimals else text


@given(
    numbers=st.lists(
        st.tuples(COUNTS, st.sampled_from(["", "5", "25", "125", "0000001"])), min_size=1
    ),
    locale=st.sampled_from(sorted(LOCALES)),
)
def test_number_of_any_locale_is_read_back_or_refused(
    numbers: list[tuple[int, str]], locale: str
) -> None:
    """No file is read with another value than was written into it."""
    texts = [written(whole, decimals, locale) for whole, decimals in numbers]
    try:
        convention = decide(enumerate(texts, 1), file="a.csv")
    except ProfileError:
        return
    expected = [float(f"{whole}.{decimals or '0'}") for whole, decimals in numbers]
    assert expected == [convention.value(text) for text in texts]


@given(numbers=st.lists(COUNTS, min_size=1), locale=st.sampled_from(READ))
def test_file_with_one_decisive_number_is_never_refused(numbers: list[int], locale: str) -> None:
    """A number with groups and decimals settles the convention of all others."""
    decisive = written(1234567, "25", locale)
    texts = [written(number, "", locale) for number in numbers]
    convention = decide(enumerate([*texts, decisive], 1), file="a.csv")
    assert [float(number) for number in numbers] == [convention.value(text) for text in texts]


@given(numbers=st.lists(COUNTS, max_size=5), locale=st.sampled_from(sorted({*LOCALES} - {*READ})))
def test_file_of_another_locale_is_refused_with_what_to_do(numbers: list[int], locale: str) -> None:
    """A number with groups and decimals shows that the file was written for other readers."""
    texts = [written(number, "", locale) for number in numbers]
    with pytest.raises(ProfileError) as told:
        decide(enumerate([*texts, written(1234567, "25", locale)], 1), file="a.csv")
    assert "does not fit the number format of the lines above" in told.value.details or (
        "may be" in told.value.details
    )
    assert "LC_ALL=C" in told.value.hint


@pytest.mark.parametrize("text", ["1.234", "1,234"])
def test_number_with_two_readings_is_refused_with_its_line_and_what_to_do(text: str) -> None:
    """Where nothing settles whether it is a thousand or one and a bit, nothing is read."""
    with pytest.raises(ProfileError) as told:
        decide([(7, "5"), (9, text)], file="a.csv")
    assert told.value.details.startswith(f"line 9: '{text}' may be")
    assert "LC_ALL=C" in told.value.hint
    assert "--print-units base" in told.value.hint


def test_number_of_another_convention_than_the_rest_is_refused() -> None:
    """Half a file of one locale and half of another is no file of a profiler."""
    with pytest.raises(ProfileError) as told:
        decide([(1, "1,234.5"), (2, "1.234,5")], file="a.csv")
    assert told.value.details.startswith("line 2: ")


def test_scaled_value_is_read_with_a_point_beside_grouped_ones() -> None:
    """Nsight Compute prints scaled values with six decimals and a point in every locale."""
    convention = decide([(1, "1.200.000"), (2, "25.170048")], file="a.csv")
    read = [convention.value(text) for text in ("1.200.000", "25.170048")]
    assert read == [1_200_000.0, 25.170048]


def test_indian_groups_are_refused_with_what_to_do() -> None:
    """Groups of two digits before the last three are of no locale that is read."""
    with pytest.raises(ProfileError) as told:
        decide([(1, "62,39,72,574")], file="a.csv")
    assert told.value.details.startswith("line 1: '62,39,72,574' does not fit the number format")
    assert "LC_ALL=C" in told.value.hint


@pytest.mark.parametrize("text", ["", "n/a", "nan", "-nan", "inf"])
def test_what_is_no_number_is_missing_and_not_zero(text: str) -> None:
    """A metric that does not exist on a chip has no value."""
    assert is_missing(text)


@pytest.mark.parametrize(
    ("unit", "factor", "base"),
    [
        ("byte", 1, "B"), ("Kbyte", 1e3, "B"), ("Gbyte", 1e9, "B"), ("Gbyte/second", 1e9, "B/s"),
        ("Mbyte/s", 1e6, "B/s"), ("GB/s", 1e9, "B/s"), ("nsecond", 1, "ns"), ("us", 1e3, "ns"),
        ("msecond", 1e6, "ns"), ("s", 1e9, "ns"), ("cycle/nsecond", 1e9, "cycle/s"),
        ("cycle/second", 1, "cycle/s"), ("Ghz", 1e9, "cycle/s"), ("sectors", 1, "sector"),
        ("%", 1, "%"), ("", 1, ""), ("register/thread", 1, "register/thread"),
    ],
)  # fmt: skip
def test_unit_becomes_its_base_unit(unit: str, factor: float, base: str) -> None:
    """Multiples are of 1000, times are in ns, rates are per second."""
    read = read_unit(unit)
    assert read is not None
    assert (pytest.approx(factor), base) == (read.factor, read.base)


@pytest.mark.parametrize("unit", ["parsec", "byte/", "byte/parsec", "Kinst", "/second/", "bit"])
def test_unknown_unit_is_no_unit(unit: str) -> None:
    """What a unit is not known to mean is not guessed."""
    assert read_unit(unit) is None
