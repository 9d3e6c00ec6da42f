"""Two pages share a name only when everything up to their end is the same, for the same tenant."""

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import pack_tokens
from protocol.prefix import HASH_BYTES, next_page_hash, page_hashes, root_hash

ROOT = root_hash(b"salt", "demo")
tokens = st.lists(st.integers(0, 2**31 - 1), max_size=40)


@given(tokens, st.integers(1, 9))
def test_each_full_page_has_a_name_and_the_rest_has_none(ids, page_size):
    names = page_hashes(ROOT, ids, page_size)
    assert len(names) == len(ids) // page_size
    assert all(len(name) == HASH_BYTES for name in names)


@given(tokens, tokens, st.integers(1, 5))
def test_names_agree_exactly_as_far_as_the_tokens_do(one, other, page_size):
    for index, (mine, yours) in enumerate(
        zip(page_hashes(ROOT, one, page_size), page_hashes(ROOT, other, page_size), strict=False)
    ):
        end = (index + 1) * page_size
        assert (mine == yours) == (one[:end] == other[:end])


@given(tokens, st.integers(1, 5), st.integers(0, 8))
def test_a_worker_goes_on_from_any_page_of_the_gateways_chain(ids, page_size, at):
    names = page_hashes(ROOT, ids, page_size)
    known = names[:at]
    parent = known[-1] if known else ROOT
    assert known + page_hashes(parent, ids[len(known) * page_size :], page_size) == names


def test_a_name_is_the_sha256_of_its_parent_and_tokens():
    page = [1, 2, 3]
    expected = sha256(ROOT + pack_tokens(page)).digest()
    assert next_page_hash(ROOT, page) == page_hashes(ROOT, page, 3)[0] == expected


@pytest.mark.parametrize(
    ("salt", "model"),
    [(b"other", "demo"), (b"salt", "other"), (b"saltd", "emo"), (b"", "saltdemo")],
)
def test_another_tenant_or_model_starts_another_chain(salt, model):
    assert root_hash(salt, model) != ROOT
    assert root_hash(b"salt", "demo") == ROOT
