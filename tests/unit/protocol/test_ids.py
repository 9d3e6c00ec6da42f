"""Token ids survive the wire on any machine; epochs order as they were given out."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import Epoch, new_id, pack_tokens, unpack_tokens

int32 = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(int32))
def test_token_ids_are_packed_as_little_endian_int32(ids):
    assert pack_tokens(ids) == struct.pack(f"<{len(ids)}i", *ids)


@given(st.lists(int32))
def test_packed_token_ids_are_unpacked(ids):
    assert unpack_tokens(pack_tokens(ids)) == ids


@given(st.lists(int32))
def test_a_big_endian_machine_writes_and_reads_the_same_bytes(ids):
    with pytest.MonkeyPatch.context() as patch:
        # What such a machine's array holds is what this one's holds, swapped: so the swap must
        # happen there, and the outcome here is the other order.
        patch.setattr("sys.byteorder", "big" if struct.pack("=i", 1)[0] else "little")
        assert pack_tokens(ids) == struct.pack(f">{len(ids)}i", *ids)
        assert unpack_tokens(struct.pack(f">{len(ids)}i", *ids)) == ids


@pytest.mark.parametrize("bad", [2**31, -(2**31) - 1])
def test_what_is_no_int32_is_refused(bad):
    with pytest.raises(OverflowError):
        pack_tokens([bad])


@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_a_part_of_a_token_is_refused(length):
    with pytest.raises(ValueError):
        unpack_tokens(bytes(length))


def test_ids_are_128_bits_in_hex_and_differ():
    made = {new_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(one) == 32 and int(one, 16) >= 0 for one in made)


def test_a_later_epoch_of_a_boot_is_larger():
    assert Epoch("boot", 9) < Epoch("boot", 10)
