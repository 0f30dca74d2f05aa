"""Which keys and values are secrets, and what stands in their place."""

import pytest

from scalewise.config import config_id
from scalewise.records import REDACTED, names_secret, redacted, redacted_words, with_secrets
from scalewise.records.redaction import ENV_SECRETS, secrets_of

SHAPED = "hf_" + "aB3d" * 9

SECRET = ("model.api_key hub_token dataset.password model.credentials.user --auth-token apiKey "
          "client_secret model.aws_access_key_id db_passwd TOKEN")  # fmt: skip
NONE = ("tokenizer max_tokens pad_token model.eos_token token_count model.key_dim dataset.path "
        "monkey passes model.patch optimizer.lr")  # fmt: skip


@pytest.mark.parametrize("key", [*SECRET.split(), *NONE.split()])
def test_a_key_that_names_a_secret_is_told_from_others(key: str) -> None:
    assert names_secret(key) is (key in SECRET.split())


def test_values_go_by_their_key_or_by_their_shape() -> None:
    config = {
        "model": {"api_key": "abc", "use_token": True, "width": 8, "tokens": [SHAPED, "plain"]},
        "dataset": {"path": "s3://me:my-password@host/data", "secret": {"a": 1, "b": None}},
    }
    assert redacted(config) == {
        "model": {
            "api_key": REDACTED, "use_token": True, "width": 8, "tokens": [REDACTED, "plain"],
        },
        "dataset": {"path": f"s3://{REDACTED}@host/data", "secret": {"a": REDACTED, "b": None}},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("+model.api_key=abc,def", f"+model.api_key={REDACTED}"),
        ("model.api_key=${oc.env:KEY}", "model.api_key=${oc.env:KEY}"),
        ("+m.auth={user: me, password: a b}", f"+m.auth={{user: me, password: {REDACTED}}}"),
        ("+m.auth={password: ${oc.env:PW}, n: 1}", "+m.auth={password: ${oc.env:PW}, n: 1}"),
        ("dataset.path=https://u:p4ss@host/x=1", f"dataset.path=https://{REDACTED}@host/x=1"),
        ("model.width=8", "model.width=8"),
        (SHAPED, REDACTED),
    ],
)
def test_words_of_a_command(word: str, kept: str) -> None:
    assert redacted_words(["train.py", word]) == ("train.py", kept)


def test_options_of_a_script_of_ones_own() -> None:
    words = ["fit.py", "token", "2", "--api-key", "abc", "--hub-token=def", "--steps", "3"]
    kept = ("fit.py", "token", "2", "--api-key", REDACTED, f"--hub-token={REDACTED}", *words[-2:])
    assert redacted_words(words) == kept
    config = {"script": {"command": " ".join(words)}}
    assert redacted(config) == {"script": {"command": " ".join(kept)}}
    typed = f"script.command='{' '.join(words)}'"
    assert redacted_words([typed]) == (f"script.command='{' '.join(kept)}'",)


def test_a_rank_that_was_given_none_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_SECRETS, '{"model.api_key": 17}')
    assert with_secrets({"model": {"api_key": REDACTED}}) == {"model": {"api_key": 17}}
    with pytest.raises(ValueError, match=r"^dataset\.token: found no value in SCALEWISE_SECRETS"):
        with_secrets({"dataset": {"token": REDACTED}})


def test_whose_key_it_is_makes_no_other_cell() -> None:
    one, other = ({"model": {"api_key": key, "width": 8}} for key in ("abc", "def"))
    assert config_id(one) == config_id(other) != config_id({"model": {"width": 8}})
    assert secrets_of(one | {"fill": float("nan")}) == {"model.api_key": "abc"}
