"""Texts are marked and found, and nothing shows a key."""

import json
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gumball
from gumball import Batch, Evidence, MarkedPart, Pool, Sampler, SamplingParams, Status, Watermark, detect, find_marked
from gumball.plugins import marks

KEY = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
ROW = np.arange(200, dtype=np.float32) % 7 * np.float32(0.4)


@pytest.fixture(autouse=True, scope="module")
def keys() -> None:
    assert gumball.add_watermark_keys(f"# keys\n21 {KEY}\n22 {'5c' * 16}\n") == 2


def text(watermark: Watermark | None, count: int, seed: int = 1) -> list[int]:
    sampler = Sampler(SamplingParams(watermark=watermark, seed=seed), len(ROW))
    return [int(sampler.sample(ROW) or 0) for _ in range(count)]


def test_a_marked_text_is_found_and_others_are_not() -> None:
    mark = Watermark(key=21)
    ids = text(mark, 150)
    found = detect(ids, mark)
    assert isinstance(found, Evidence) and found.key == 21 and found.tokens + found.skipped == 150
    assert found.p_value < 1e-20 and found.ln_p < -40
    assert detect(ids, mark, keys=[22, 21]).key == 21
    assert detect(ids, mark, keys=[22]).p_value > 1e-4
    assert detect(text(None, 150), mark).p_value > 1e-4
    (part,) = find_marked(text(None, 400) + ids + text(None, 400, 2), mark, length=80, alpha=1e-6)
    assert isinstance(part, MarkedPart) and 320 <= part.start and part.end <= 640


def test_rows_say_that_they_are_marked_and_seeds_do_not_matter() -> None:
    pool = Pool(len(ROW), slots=2)
    params = SamplingParams(watermark=Watermark(key=21, context=2, scope="both"))
    slots = [pool.admit(params.replace(seed=seed), [5, 6, 7]) for seed in (1, 2)]
    out = pool.step(np.stack([ROW, ROW]), slots)
    assert all(Status(status) == Status.MARKED for status in out.statuses)
    assert out.tokens[0] == out.tokens[1]


def test_a_pool_marks_requests_that_name_no_mark() -> None:
    mark, own = (Watermark(key=key, context=2, scope="both") for key in (21, 22))
    pool = Pool(len(ROW), slots=4, watermark=mark)
    named = [SamplingParams(seed=1, watermark=it) for it in (None, False, own)]
    slots = [pool.admit(params, [5, 6, 7]) for params in named]
    plain = Pool(len(ROW), slots=4)
    other = [plain.admit(named[0].replace(watermark=it), [5, 6, 7]) for it in (mark, None, own)]
    rows = np.stack([ROW] * 3)
    out = pool.step(rows, slots)
    assert out.statuses.tolist() == [Status.MARKED, 0, Status.MARKED]
    assert out.tokens.tolist() == plain.step(rows, other).tokens.tolist()
    again = pool.resume(named[0], pool.state(slots[0]))
    assert pool.step(ROW[None], [again]).statuses.tolist() == [Status.MARKED]

    enforcing = Pool(len(ROW), slots=1, watermark=mark, enforce_all=True)
    with pytest.raises(ValueError, match=r"watermark is false, but must be .*\(enforce_all\)"):
        enforcing.admit(named[1])
    assert enforcing.admit(named[0]) == 0
    with pytest.raises(ValueError, match="watermark.key is 999"):
        Pool(8, watermark=Watermark(key=999))
    with pytest.raises(ValueError, match="enforce_all is true, but must be false in a pool without a watermark"):
        Pool(8, enforce_all=True)
    with pytest.raises(TypeError, match="watermark"):
        Pool(8, watermark=True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="watermark must be a gumball.Watermark or False"):
        SamplingParams(watermark=True)  # type: ignore[arg-type]
    assert SamplingParams.from_json(named[1].to_json()) == named[1] != named[0]
    assert pickle.loads(pickle.dumps(named[1])).watermark is False


def test_nothing_shows_the_key() -> None:
    params = SamplingParams(watermark=Watermark(key=21))
    shown = [repr(params), params.to_json(), pickle.dumps(params).hex()]
    pool = Pool(len(ROW), slots=1)
    shown.append(repr(pool.state(pool.admit(params))))
    assert not any(KEY in text.lower() or bytes.fromhex(KEY).hex() in text for text in shown)
    assert json.loads(params.to_json())["watermark"]["key"] == 21
    with pytest.raises(ValueError, match="number is 21") as error:
        gumball.add_watermark_keys(f"21 {'ab' * 16}")
    assert "abab" not in str(error.value)


@pytest.mark.parametrize("secret", [KEY, "0x0123456789abcdef", int(KEY, 16), 2**40 + 21, 1.5e19])
def test_no_error_shows_a_key_that_is_given_in_the_place_of_its_number(secret: Any) -> None:
    text = json.dumps(secret)
    calls: list[Callable[[], Any]] = [
        lambda: Watermark(key=secret),
        lambda: SamplingParams(watermark=secret),
        lambda: SamplingParams(watermark={"key": secret}),  # type: ignore[arg-type]
        lambda: SamplingParams.from_json(f'{{"watermark": {text}}}'),
        lambda: SamplingParams.from_json(f'{{"watermark": {{"key": {text}}}}}'),
        lambda: Pool(8, watermark=secret),
        lambda: detect([1, 2], secret),
        lambda: detect([1, 2], keys=[secret]),
        lambda: detect([1, 2], keys=secret),
        lambda: detect([1, 2], scheme=f"sglang={secret}"),
        lambda: find_marked([1, 2], scheme=f"vllm={secret}"),
        lambda: marks.Server.of_json(f'{{"key": {text}}}'),
        lambda: marks.Server.of_json(text),
        lambda: marks.Server.of_json(f'{{"key": 1, "enforce_all": {json.dumps(KEY)}, "{KEY}": 1}}'),
        lambda: marks.server_params({"watermark_key": secret}, "the request"),
        lambda: marks.server_params({"watermark": secret}, "the request"),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError)) as error:
            call()
        told: BaseException | None = error.value
        while told is not None:
            assert str(secret) not in str(told) and KEY not in str(told)
            told = told.__cause__ or told.__context__


def test_other_engines_keys_and_schemes_are_checked() -> None:
    assert gumball.add_watermark_keys("23 0xFEDCBA9876543210") == 1
    ids, mark = [i * 7 % 40 for i in range(100)], Watermark(key=23)
    found = [detect(ids, mark, scheme=scheme) for scheme in ("gumball", "vllm", "sglang", "vllm_dual_key=0.3")]
    assert len({evidence.ln_p for evidence in found}) == 4 and all(evidence.p_value > 1e-6 for evidence in found)
    assert find_marked(ids, mark, scheme="vllm", length=50) == []
    with pytest.raises(ValueError, match="keys is 21, but must be a key of 64 bits, as sglang has"):
        detect(ids, Watermark(key=21), scheme="sglang")
    assert gumball.add_watermark_keys("24 0x0123456789abcdef") == 1
    assert len({detect(ids, mark, scheme=scheme).ln_p for scheme in ("sglang", "sglang=24", "sglang=24,0.2")}) == 3
    with pytest.raises(ValueError, match="scheme is 21, but must be a key of 64 bits"):
        detect(ids, mark, scheme="sglang=21")
    with pytest.raises(ValueError, match='scheme.*"vlm".*gumball, vllm, vllm_dual_key, sglang'):
        detect(ids, mark, scheme="vlm")
    with pytest.raises(ValueError, match="scheme.*vllm_dual_key=.*alpha in 0..=1"):
        detect(ids, mark, scheme="vllm_dual_key=2")


def test_a_mark_without_a_key_and_judged_drafts_are_refused() -> None:
    with pytest.raises(ValueError, match="watermark.key is 999"):
        Pool(8, slots=1).admit(SamplingParams(watermark=Watermark(key=999)))
    with pytest.raises(ValueError, match="watermark.scope"):
        Pool(8, slots=1).admit(SamplingParams(watermark=Watermark(key=21, scope="prompt")))
    pool = Pool(len(ROW), slots=1)
    slot = pool.admit(SamplingParams(watermark=Watermark(key=21)))
    with pytest.raises(gumball.Error, match="watermark cannot be combined with mode"):
        pool.verify(np.stack([ROW, ROW]), Batch([slot], mode="rejection"), [[3]])


@pytest.mark.parametrize(
    "server, given, key",
    [
        (None, {}, None),
        (None, {"watermark": False}, None),
        (None, {"watermark_key": 22}, 22),
        (None, {"watermark": True}, "no GUMBALL_WATERMARK; give watermark_key"),
        ("{}", {}, 21),
        ("{}", {"watermark": True}, 21),
        ("{}", {"watermark": False}, None),
        ("{}", {"watermark_key": 22}, 22),
        ("{}", {"watermark_context": 2}, 21),
        ("{}", {"watermark": False, "watermark_key": 22}, "but also watermark_key; leave one of them out"),
        # As a server of vLLM reads true and false.
        ("{}", {"watermark": 1}, 21),
        ("{}", {"watermark": 0}, None),
        ("{}", {"watermark": 2}, "watermark = 2, but it must be true or false, 1 or 0"),
        (None, {"watermark_context": 1}, "has watermark_context without watermark_key"),
        ('{"default_enabled": false}', {}, None),
        ('{"default_enabled": false}', {"watermark": True}, 21),
        ('{"default_enabled": false, "enforce_all": true}', {}, 21),
        ('{"enforce_all": true}', {"watermark": False}, "but the server marks all texts"),
    ],
)
def test_a_servers_mark_is_that_of_requests_that_name_none(
    server: str | None, given: dict[str, Any], key: int | str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = None if server is None else marks.Server.of_json(json.dumps({"key": 21, "window": 9} | json.loads(server)))
    monkeypatch.setattr(marks, "SERVER", made)
    if isinstance(key, str):
        with pytest.raises(gumball.errors.RefusedError, match=key):
            marks.server_params(given, "the request")
        return
    mark = marks.server_params(given, "the request").get("watermark")
    window, context = 9 if server else 8192, given.get("watermark_context", 4)
    assert mark == (key and Watermark(key=key, context=context, window=window))


@pytest.mark.parametrize(
    "text, said",
    [
        ("7", "must be a JSON object with the number of a key"),
        ("{", "is no JSON"),
        ('{"context": 4}', "must be a JSON object with the number of a key"),
        ('{"key": 999}', "watermark.key is 999"),
        ('{"key": "21"}', "watermark_key = a value that is not shown, but it must be a whole number"),
        ('{"key": 21, "contxt": 4}', "contxt is no field"),
        ('{"key": 21, "context": 65}', "watermark.context is 65"),
        ('{"key": 21, "enforce_all": 1}', "enforce_all = 1, but it must be true or false"),
    ],
)
def test_a_servers_mark_that_cannot_be_is_refused_by_its_variable(text: str, said: str) -> None:
    with pytest.raises(gumball.errors.InvalidValueError, match=f"GUMBALL_WATERMARK.*{said}"):
        marks.Server.of_json(text)
