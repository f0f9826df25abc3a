"""What a body may say of the shares, and what the pools are shown as."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.brain.domain.demand import JobClass
from stoker.brain.domain.errors import StokerError
from stoker.brain.domain.gpu import WHOLE_GPU
from stoker.brain.domain.quota import WHOLE, PoolDemand, Pools
from stoker.wire.rest.decode import decode_body
from stoker.wire.rest.quota import QuotaBody, parse_share, pools_of, quota_view, share_of


def after(now: Pools | None = None, **fields: object) -> Pools:
    return pools_of(decode_body(QuotaBody, json.dumps(fields).encode()), now or Pools())


def test_p2_where_only_online_is_given_batch_gets_the_rest() -> None:
    assert after(online_percent=0.6) == Pools(online=600_000, batch=400_000)
    assert after(online_percent=1) == Pools(online=WHOLE, batch=0)
    assert after(online_percent=0.6, batch_percent=0.1) == Pools(online=600_000, batch=100_000)


def test_what_is_not_given_stays() -> None:
    now = Pools(online=500_000, batch=100_000, strict=True)
    assert after(now, batch_percent=0.2) == Pools(online=500_000, batch=200_000, strict=True)
    assert after(now, strict=False) == Pools(online=500_000, batch=100_000)


@given(st.integers(0, WHOLE))
def test_a_share_is_exactly_what_its_digits_say(parts: int) -> None:
    assert share_of("x", parts / WHOLE) == parts


@pytest.mark.parametrize("share", [1.0000001, -1e-9, 70, float("nan"), float("inf"), -float("inf"), 1e300])
def test_p1_no_other_number_is_a_share(share: float) -> None:
    with pytest.raises(StokerError) as fault:
        share_of("online_percent", share)
    assert fault.value.refusal.code == "bad_share"
    assert "online_percent" in fault.value.refusal.message


@pytest.mark.parametrize("field", ["online_percent", "batch_percent"])
def test_p1_the_description_of_rest_says_between_which_numbers_a_share_lies(field: str) -> None:
    _, shapes = msgspec.json.schema_components([QuotaBody])
    number, _ = shapes["QuotaBody"]["properties"][field]["anyOf"]
    assert (number["type"], number["minimum"], number["maximum"]) == ("number", 0, 1)


@pytest.mark.parametrize(
    "text", ["", "x", "%", "101", "1.5", "120%", "-1%", "70 %%", "1,5", "0_7", "nan", "inf", "1e9", "0x1", "-0.1"]
)
def test_p1_no_other_text_is_a_share_and_the_refusal_repeats_it(text: str) -> None:
    with pytest.raises(StokerError) as fault:
        parse_share("--online-percent", text)
    assert (fault.value.refusal.code, text in fault.value.refusal.message) == ("bad_share", True)
    assert fault.value.refusal.hint


@pytest.mark.parametrize(
    ("text", "share"),
    [("0.7", 0.7), ("70", 0.7), ("70%", 0.7), (" 70 % ", 0.7), ("1", 1), ("1%", 0.01), ("0.5%", 0.005)],
)
def test_p1_a_share_is_read_as_people_write_it_and_one_is_all_of_it(text: str, share: float) -> None:
    assert parse_share("--online-percent", text) == share


amounts = st.integers(0, 300).map(lambda gpus: gpus * WHOLE_GPU)
shares = st.integers(0, WHOLE)


pool_demands = st.builds(PoolDemand, amounts, amounts, amounts)


@given(amounts, pool_demands, pool_demands, shares, st.booleans())
def test_the_numbers_of_the_pools_agree_with_each_other(
    free: int, online: PoolDemand, batch: PoolDemand, share: int, strict: bool
) -> None:
    pools = Pools(online=share, batch=WHOLE - share, strict=strict)
    shown = quota_view(pools, free, {JobClass.ONLINE: online, JobClass.BATCH: batch})
    free, *used = (milli // WHOLE_GPU for milli in (free, online.used, batch.used))
    assert shown.total_gpus == free + sum(used) == shown.online.quota + shown.batch.quota
    for pool in (shown.online, shown.batch):
        assert pool.quota == pool.guaranteed
        assert pool.used - pool.borrowed + pool.available == pool.guaranteed
        assert 0 <= pool.free <= free
        assert pool.limit_now == pool.used + pool.free
        # Whoever is under his guarantee may take what is idle, up to it.
        if pool.used < pool.guaranteed:
            assert pool.free >= min(free, pool.guaranteed - pool.used)
    if strict:
        wall = shown.total_gpus - max(used[1], shown.batch.guaranteed)
        assert shown.online.limit_now == max(used[0], wall)
