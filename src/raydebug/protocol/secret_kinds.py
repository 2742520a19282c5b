"""What secrets look like, whatever their name: the beginnings that services give them, and forms of other kinds."""

from __future__ import annotations

import functools
import re

_START = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"  # of a word (`task-specialized-reward` has none), or after an escape
_LETTERS = {"a": "[A-Za-z0-9]", "b": "[A-Za-z0-9_+/=-]", "c": "[A-Z0-9]", "d": r"[\w.=-]", "h": "[0-9a-fA-F]"}
_LETTERS |= {"u": "[A-Z0-9-]", "w": r"[\w-]"}
# The beginning, the letters that follow, and how many at least. Source: gitleaks b58d3f1, config/gitleaks.toml, rules
# that need no name beside the value, some shorter; the last group: keys of other services in public repositories.
KINDS = """
A3-|u28 ops_eyJ|b100 p8e-|a32 AGE-SECRET-KEY-1|c50 LTAI|a16 sk-|w16 AKCp|a60 cmVmd|a59 ABSK|b100 bedrock-api-key-|b20
CLOJARS_|a60 v1.0-|w100 dapi|h32 doo_v1_|h64 dop_v1_|h64 dor_v1_|h64 dp.pt.|a43 duffel_test_|d43 duffel_live_|d43
dt0c01.|d80 EZAK|a54 EZTK|a54 EAAM|a100 EAAC|a100 EAAA|w22 sq0atp-|w22 FLWSECK_TEST-|a12 fo1_|w43 fm1a_|b100 fm1r_|b100
fm2_|b100 fio-u-|d64 AIza|w35 github_pat_|w20 ghp_|a20 gho_|a20 ghu_|a20 ghs_|a20 ghr_|a20 glcbt-|w20 gldt-|w20
glffct-|w20 glft-|w20 glimt-|w20 glagent-|w20 gloas-|w20 glpat-|d16 glptt-|w20 glrt-|d16 glsoat-|w20 GR1348941|w20
eyJrIjoi|b70 glc_|b32 glsa_|w32 HRKU-AA|w50 hf_|a20 api_org_|a20 ico-|a32 s-s4t2ud-|h64 s-s4t2af-|h64 ZXlK|b100
lin_api_|a40 ntn_|a40 npm_|a36 API-|c26 sha256~|w43 pplx-|a40 pscale_tkn_|d32 pscale_oauth_|d32 pscale_pw_|d32 PMAK-|w50
pnu_|a36 pul-|h40 pypi-|w50 rdme_|a70 rubygems_|h48 tk-us-|w48 SG.|d60 xkeysib-|w64 sntrys_|b60 sntryu_|h64 sm_aat_|a16
sm_pat_|a16 sm_sat_|a16 shippo_live_|h40 shippo_test_|h40 shpat_|h32 shpca_|h32 shppa_|h32 shpss_|h32 xapp-|w20
sgp_|w40 sk_live_|a10 sk_test_|a10 sk_prod_|a10 rk_live_|a10 rk_test_|a10 rk_prod_|a10 hvb.|w60 hvs.|w24

hf_oauth_|w20 ya29.|w40 1//0|w30 GOCSPX-|w20 IQoJb3JpZ2lu|b100 FwoGZXIvYXdz|b100 ATATT3|d50 ATBB|a24 dckr_pat_|w20
dckr_oat_|w20 lsv2_pt_|w20 lsv2_sk_|w20 r8_|a30 fw_|a20 tskey-|w20 nvapi-|w20 gsk_|a20 xai-|a20 wandb_v1_|w20
key-|h32 LS0tLS1CRUdJTi|b60
"""
_MAY_BE = r"[\w.+/=~-]{17}"  # the shortest of them
# Of other forms, by the marks that each has: a text without a mark is not searched.
_FORMS = (
    (("AKIA", "ASIA", "ABIA", "ACCA", "A3T"), rf"{_START}A(?:KIA|SIA|BIA|CCA|3T[0-9A-Z])[0-9A-Z]{{16}}\b"),
    (("4b1d",), r"(?<![\w])4b1d[A-Za-z0-9]{38}(?!\w)"),
    (("pat", "sat."), rf"{_START}(?:pat[A-Za-z0-9]{{14}}\.[a-f0-9]{{64}}|[ps]at\.[\w-]{{22}}\.[A-Za-z0-9.]{{45}})"),
    (("SK",), rf"{_START}SK[0-9a-fA-F]{{32}}(?!\w)"),
    ((".atlasv1.",), r"\w{14}\.atlasv1\.[\w=-]{60,}"),
    (("_mmk",), r"(?<!\w)[A-Za-z0-9]{6}_[A-Za-z0-9]{29}_mmk"),
    (("Q~",), r"(?<![\w.~-])[\w.~]{3}\dQ~[\w.~-]{31,}"),
    (("K10",), rf"{_START}K10[0-9a-f]{{64}}::\w+:\w+"),
    (("xox",), r"xox[abeoprs](?:\.xox[bp])?-[\w-]{10,}"),
    (("hooks.slack.com",), r"(?<=hooks\.slack\.com/)[\w/]{20,}"),
    (("/webhook",), r"(?<=/webhook)(?:s/\d{15,20}/|b2/)[\w/@-]{40,}"),  # of Discord, of Teams
    ((":AA",), r"(?<!\d)\d{8,10}:AA[\w-]{32,}"),  # Telegram
    ((".",), r"(?<![\w.-])[MNO][\w-]{23,25}\.[\w-]{6}\.[\w-]{27,}"),  # Discord
    # Possessive and from the beginning of a word: so that the time grows as the text does.
    (("eyJ",), r"(?:(?<![\w-])|(?<=\\[nrt]))eyJ[\w-]{10,}+\.[\w-]{10,}+(?:\.[\w-]+)?"),
    (("PRIVATE KEY",), r"(?s)-----BEGIN [A-Z0-9 ]{0,100}PRIVATE KEY(?: BLOCK)?-----(?:(?!-----END).)*"),
    # In a URL: user:password, where the password may have / and @, and no number of a port is taken for one; a user
    # that can only be a token; the signature of a signed address.
    (("://",), r"(?<=://)[^/\s:@\[]*+:(?!\d{1,5}(?:[/?#]|$))[^\s@\"'<>]{1,500}+(?:@[^\s@/\"'<>]{1,500}+)*(?=@)"),
    (("://",), r"(?<=://)(?=[^\s@/]{0,200}\d)[\w.~%-]{16,}+(?=@)"),
    (("sig=", "ignature="), r"(?:(?<=[?&]sig=)|(?<=[-?&]Signature=))[\w%+/=-]{16,}"),
    (("earer ",), r"(?<=earer )[\w.~+/=-]{16,}"),
    (("wd=", "WD="), r"(?i)(?<=;pwd=)(?!/)[^;\s\"']+"),  # of ADO; not a shell's folder
    (("SecretStr(", "SecretBytes("), r"(?:(?<=SecretStr\([\"'])|(?<=SecretBytes\(b[\"']))[^\"'\n]+"),
    # Weights & Biases. A folder or a revision of this form is a commit: `models--x/snapshots/HASH/`, `repo@HASH`.
    (("",), r"(?<![\w/@])[0-9a-fA-F]{40}(?![\w/])"),
)  # fmt: skip
_FORM_OF = [(mark, form) for marks, form in _FORMS for mark in marks]


@functools.cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of a secret when it is first needed: most processes never hide one."""
    return re.compile(pattern)


@functools.cache
def _beginnings() -> list[tuple[str, str]]:
    parts = (kind.rpartition("|") for kind in KINDS.split())
    return [(start, f"{_START}{re.escape(start)}{_LETTERS[how[0]]}{{{how[1:]},}}") for start, _, how in parts]


def without_kinds(text: str, hidden: str) -> str:
    """Return a text with what looks like a secret replaced; the lines below keep their numbers."""
    looks = [form for mark, form in _FORM_OF if mark in text]
    if compiled(_MAY_BE).search(text):
        looks += [form for start, form in _beginnings() if start in text]
    for form in looks:
        text = compiled(form).sub(lambda found: hidden + "\n" * found[0].count("\n"), text)
    return text
