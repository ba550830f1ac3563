"""Texts that tokenizers disagree about: every script, and what is no script at all."""

from __future__ import annotations

import random
import sys
import unicodedata
from functools import cache

SAMPLES = """\
The quick brown fox can't, won't and shouldn't jump; it's they're we've I'm he'll she'd. IT'S THEY'RE
Ça déjà vu, naïve façade – Größe, Straße, Ærøskøbing, Łódź, Đà Nẵng, İstanbul ıI
Съешь же ещё этих мягких французских булок, да выпей чаю.  Μηδὲν ἄγαν. Ողջույն աշխարհ
שלום עולם! מה שְׁלוֹמְךָ? السلام عليكم، كيف حالك؟ ١٢٣٤ ۱۲۳ سلام دنیا
नमस्ते दुनिया १२३ বাংলা ভাষা ਪੰਜਾਬੀ ગુજરાતી தமிழ் தெலுగు ಕನ್ನಡ മലയാളം සිංහල
ภาษาไทยไม่มีช่องว่าง ລາວ မြန်မာ ភាសាខ្មែរ བོད་ཡིག 123๔๕
中文没有空格,日本語もそうです。カタカナ ﾊﾝｶｸ 한국어는 띄어쓰기 ㄱㄴㄷ 繁體字 𠀀𠮷 １２３
ქართული አማርኛ ᏣᎳᎩ ᐃᓄᒃᑎᑐᑦ ᠮᠣᠩᠭᠣᠯ 𐌰𐌱 𝔘𝔫𝔦 𝟙𝟚 ⅷ Ⅻ ½ ¾ ² ³ ① ㊿ 〇
👩‍👩‍👧‍👦 🏳️‍🌈 🇫🇷🇯🇵 👍🏽 ❤️ ☎ 🫩 1️⃣ #️⃣ ©®™ ‼️ 🤷🏿‍♂️
e\u0301 = é, A\u030a = Å = Å, q\u0307\u0323 ḍ\u0307, ﬁ ﬀ ª º ẛ̣, 가 = 각, ø̈ ͏ a\u0300\u0301\u0302\u0303
def f(x: int) -> str:\\n    return f"{x!r:>10}"  # noqa\\n\\n\\nclass A(B):\\n\\tpass\\n
for(int i=0;i<n;++i){a[i]+=b[i]<<2;}\\r\\n\\r\\n\\t\\t// done\\r\\n#include <vector>\\r
<html><body><h1>Hi</h1>\\n  <table>\\n    <tr><td>1</td></tr>\\n  </table></body></html><img src="x"/><code> <b> </b>
SELECT * FROM t WHERE a='x''y' AND b>=10.5e-3; -- ok /* no */ $HOME/.config/~x \\x %d%% @@ ## !!
https://example.org/a/b?c=d&e=f#g user.name+tag@mail.example 192.168.0.1 ::1 2024-02-30T23:59:60Z
0 1 12 123 1234 12345 1,234.56 -7 +8 3.14159 1e10 0xFF 0b1010 ٣٫١٤ ¼ 10⁶ 1st 2nd v1.2.3 a1b2c3
<|im_start|>user\\nhi<|im_end|>\\n<|endoftext|> <|im_start <|im_end|<|im_end|>> <start_of_turn>model<end_of_turn><eos>
<bos> <pad> <unk> <mask> <unused0> <unused98> <0x41> <0xFF> [multimodal] [PAD151935] <tool_call></tool_call>
<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|> <repo_name>x <file_sep> <filename> <jupyter_start> <empty_output>
▁ ▁▁ ▁▁▁a a▁b Ġ ĠĠ Ċ ĉ Ģ Ń č âĢĵ >▁</ ><▁ > </ >\u0020</
\u00a0nbsp \u2003em \u2009thin \u3000wide \u200bzero \ufeffbom \u2028line \u2029par \u0085nel \u180e \u1680 \u202fx
\x00 \x01 \x07\x08 \x0b\x0c \x1b[31mred\x1b[0m \x7f \x80 \x9f \ufffd \ufffe \uffff \ue000 \U000f0000 \U0010ffff
...!!!???,,,;;; “quotes” ‘single’ «guillemets» „low“ — – - _ __ ___ *** === ~~~ ``` ¿¡ 。、「」…
don't DON'T Don’t 'tis 's 'S 'll 'LL ' 's'd'm'ſ ſ'ſ K'K 're're\
"""

_FILLERS = ("", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\t \t", "\n \n\n  \n", "\u00a0", "\u3000 ", "▁")


def _lines() -> list[str]:
    """The samples; \\n, \\r and \\t in them stand for white space within a sample."""
    return [line.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t") for line in SAMPLES.split("\n")]


def _assigned() -> list[str]:
    """Characters that Python's Unicode version knows, the other side then knows them too; no surrogates."""
    letters = map(chr, range(sys.maxunicode + 1))
    return [letter for letter in letters if unicodedata.category(letter) not in ("Cn", "Cs", "Co")]


@cache
def varied_texts(count: int = 2400) -> tuple[str, ...]:
    """At least `count` different texts, always the same."""
    draw = random.Random(7)
    lines, assigned = _lines(), _assigned()
    texts: dict[str, None] = dict.fromkeys(["", *lines, "\n".join(lines)])
    for letter in " \t\n\r\u00a0▁a1.é中👩":
        texts |= dict.fromkeys(letter * n for n in (1, 2, 3, 4, 7, 15, 16, 17, 31, 32, 33, 40, 64, 100))
        texts |= dict.fromkeys(
            f"{before}{letter * n}{after}" for n in (1, 2, 5) for before in "x\n" for after in ("y", " z")
        )
    texts |= dict.fromkeys(word for line in lines for word in line.split(" "))
    texts["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=2000))] = None
    texts["Donaudampfschifffahrtsgesellschaftskapitän" * 20] = None
    while len(texts) < count:
        kind = draw.randrange(6)
        if kind == 0:  # pieces of samples joined by odd white space
            parts = [draw.choice(lines) for _ in range(draw.randint(1, 3))]
            parts = [part[draw.randint(0, len(part)) :][: draw.randint(1, 30)] for part in parts]
            text = draw.choice(_FILLERS).join(parts) + draw.choice(_FILLERS)
        elif kind == 1:  # any characters at all
            text = "".join(draw.choices(assigned, k=draw.randint(1, 20)))
        elif kind == 2:  # a run within one block
            start = draw.randrange(len(assigned))
            text = "".join(draw.choices(assigned[start : start + 40], k=draw.randint(1, 20)))
        elif kind == 3:
            text = "".join(draw.choices(" \t\n\r ▁aB1'.,<|>é́中👩\u200d\u00a0", k=draw.randint(1, 30)))
        elif kind == 4:
            text = "".join(draw.choices([chr(i) for i in range(256)], k=draw.randint(1, 30)))
        else:
            text = draw.choice(_FILLERS).join(draw.choices("".join(lines).split(" "), k=draw.randint(2, 8)))
        texts[text] = None
    return tuple(texts)
