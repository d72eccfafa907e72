"""The preferences of a group as values, in JSON and as text."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuff.protocol.errors import BadRequestError, InvalidNameError
from tuff.protocol.group_preferences import GroupPreferences, RetryPolicy

retries = st.builds(
    RetryPolicy,
    delays=st.lists(st.integers(0, 604_800) | st.floats(0, 604_800), max_size=100).map(tuple),
    in_order=st.booleans(),
)
preferences = st.builds(
    GroupPreferences,
    start=st.sampled_from(["earliest", "latest", None]),
    isolation=st.sampled_from(["all", "committed", None]),
    tags=st.sampled_from(["a", "a,b|c", None]),
    retry=st.none() | retries,
    dead_letters=st.sampled_from(["failed", None]),
)


@given(preferences, preferences)
def test_text_and_form_are_read_as_they_were_written(
    one: GroupPreferences, other: GroupPreferences
) -> None:
    assert GroupPreferences.from_text(one.to_text()) == one
    assert other.with_changes(one.to_form()) == one


def test_a_change_leaves_what_it_does_not_name_and_unsets_by_null() -> None:
    before = GroupPreferences(start="latest", tags="a", dead_letters="failed")

    after = before.with_changes({"tags": None, "isolation": "all"})

    assert after == GroupPreferences(start="latest", isolation="all", dead_letters="failed")


def test_the_form_has_all_members() -> None:
    retry = RetryPolicy(delays=(timedelta(minutes=1), 2.5))

    assert GroupPreferences(retry=retry).to_form() == {
        "start": None,
        "isolation": None,
        "tags": None,
        "retry": {"delays": [60.0, 2.5], "inOrder": False},
        "deadLetters": None,
    }


@pytest.mark.parametrize(
    "form",
    [
        {"start": "first"},
        {"start": 5},
        {"isolation": "snapshot"},
        {"tags": ""},
        {"tags": ["a"]},
        {"retry": 5},
        {"retry": {}},
        {"retry": {"delays": 5}},
        {"retry": {"delays": ["5"]}},
        {"retry": {"delays": [-1]}},
        {"retry": {"delays": [True]}},
        {"retry": {"delays": [604_801]}},
        {"retry": {"delays": [1] * 101}},
        {"retry": {"delays": [], "inOrder": 1}},
        {"retry": {"delays": [], "in_order": True}},
        {"deadLetters": 5},
        {"colour": "red"},
    ],
)
def test_what_is_no_preference_is_refused(form: dict[str, object]) -> None:
    with pytest.raises(BadRequestError) as caught:
        GroupPreferences().with_changes(form)
    assert caught.value.code == "bad_request"


def test_the_topic_for_dead_letters_is_one() -> None:
    with pytest.raises(InvalidNameError):
        GroupPreferences(dead_letters="a:b")


def test_a_retry_policy_is_one() -> None:
    with pytest.raises(TypeError, match="outage"):
        GroupPreferences(retry=RetryPolicy(outage=(OSError,))).to_form()
    with pytest.raises(TypeError, match="RetryPolicy"):
        GroupPreferences(retry=(1, 2))  # type: ignore[arg-type]  # what is tested
