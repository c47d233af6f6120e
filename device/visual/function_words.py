"""Function words: English ones, which are never keywords, and those that give another language away."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Used where spaCy and its longer list are not.
ENGLISH = _words(
    """
    a about above across after again against all almost along already also although always am among an
    and any anyone anything are around as at back be because been before behind being below beside
    between beyond both but by can could did do does doing done down each either else enough ever every
    everything few for from further get give had has have having he her here hers him his how however i
    if in into is it its itself just least less made make many may me might mine more most much must my
    never no nobody none nor not nothing now of off often on once one only onto or other others our out
    over own per perhaps please quite rather really same say see seem seems several shall she should
    show since so some someone something still such take than that the their them then there these they
    this those through to together too toward towards under until up upon us very via was we well were
    what whatever when where whether which while who whole whom whose why will with within without would
    yet you your s t ll re ve d m
    """
)

#: Languages in Latin letters, by what is frequent in questions.
FOREIGN = tuple(
    map(
        _words,
        (
            # German
            "der die das dem den des und ist sind nicht ein eine einen einer welche welcher welches was wie "
            "viele wo wer auf im mit für von zu hat es gibt",
            # French
            "le la les un une des du de et est sont quelle quel quelles quels où qui que quoi combien dans sur "
            "avec pour au aux il elle ce cette ces y",
            # Spanish
            "el la los las un una de del y es son qué que cuál cuántos cuántas dónde quién en con por para hay "
            "está están este esta al",
            # Portuguese
            "o os as um uma de do da dos das e é são qual quais quantos quantas onde quem em no na com por para "
            "que há está este esta",
            # Italian
            "il lo la gli le un una di del della dei e è sono quale quali quanti quante dove chi che nel nella "
            "con per questo questa cosa",
            # Dutch
            "de het een en is zijn welke wat hoeveel waar wie op met van voor er deze dit dat niet",
            # Swedish, Danish, Norwegian
            "och är en ett vad var som på med för den det många hur vilken vilka finns og er et hvad hva hvor "
            "hvilken hvilke av",
            # Polish
            "jest są co jaki jaka jakie ile gdzie kto na w z i do ten ta to nie się",
            # Turkish
            "bir ve bu ne kaç nerede kim hangi mi mı mu için ile de da var",
            # Indonesian
            "apa berapa di mana siapa yang dan ini itu ada dengan untuk dari",
            # Vietnamese
            "là gì có bao nhiêu ở đâu ai trong của nào những và",
        ),
    )
)
