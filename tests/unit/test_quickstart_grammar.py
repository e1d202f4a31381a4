"""The quick start's grammar: hand-written pairs, morphology tables, and the properties of the corpus it gives."""

import os
import random
import stat
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "quickstart"))

import make_corpus
from grammar import REALISERS, concepts, english, french, german, lexicon_de, lexicon_en, lexicon_fr, number_words
from grammar.meaning import (
    Adverbial,
    Both,
    Clause,
    Complement,
    Gap,
    Joined,
    Name,
    Noun,
    Place,
    Pronoun,
    Question,
    Relative,
    Time,
)
from grammar.sampling import Sampler

ME, WE, HE, SHE = (Pronoun(who) for who in ("I", "we", "he", "she"))


def relative(noun, role, verb, other=None, plural=False, **kwargs):
    """A noun with a relative clause; `other` is the clause's subject (role direct) or object (role subject)."""
    gap = Gap(noun, plural)
    subject, direct = (gap, other) if role == "subject" else (other, gap)
    clause = Clause(subject, verb, direct=direct, **kwargs)
    return Noun(noun, plural=plural, relative=Relative(role, clause))


MAN, WOMAN, DOG, BOOK = (Noun(noun) for noun in ("man", "woman", "dog", "book"))
SLEEPS = Clause(DOG, "sleep")
TODAY, YESTERDAY = Time("word", "today"), Time("word", "yesterday")

# name -> (meaning, English, German, French)
GOLDEN = {
    "plain": (
        Clause(MAN, "see", direct=DOG),
        "The man sees the dog.",
        "Der Mann sieht den Hund.",
        "L'homme voit le chien.",
    ),
    "strong ending, plural": (
        Clause(ME, "buy", direct=Noun("car", "number", True, quality="old", trait="red", numeral=23)),
        "I buy twenty-three old red cars.",
        "Ich kaufe dreiundzwanzig alte rote Autos.",
        "J'achète vingt-trois vieilles voitures rouges.",
    ),
    "strong dative plural": (
        Clause(HE, "help", direct=Noun("child", "many", True, quality="small")),
        "He helps many small children.",
        "Er hilft vielen kleinen Kindern.",
        "Il aide beaucoup de petits enfants.",
    ),
    "weak noun and ending": (
        Clause(Noun("boy", quality="young"), "thank", direct=Noun("prince", "this", quality="old")),
        "The young boy thanks this old prince.",
        "Der junge Junge dankt diesem alten Prinzen.",
        "Le jeune garçon remercie ce vieux prince.",
    ),
    "mixed ending": (
        Clause(Noun("cat", "a", trait="white"), "bite", direct=Noun("elephant", "our", quality="beautiful")),
        "A white cat bites our beautiful elephant.",
        "Eine weiße Katze beißt unseren schönen Elefanten.",
        "Un chat blanc mord notre bel éléphant.",
    ),
    "an, bel, vieil": (
        Clause(Noun("uncle", "a", quality="old"), "draw", direct=Noun("tree", "this", quality="beautiful")),
        "An old uncle draws this beautiful tree.",
        "Ein alter Onkel zeichnet diesen schönen Baum.",
        "Un vieil oncle dessine ce bel arbre.",
    ),
    "an before the noun": (
        Clause(WE, "find", tense="past", direct=Noun("umbrella", "a")),
        "We found an umbrella.",
        "Wir fanden einen Regenschirm.",
        "Nous avons trouvé un parapluie.",
    ),
    "mass, strong singular": (
        Clause(SHE, "drink", direct=Noun("water", "mass", trait="cold")),
        "She drinks cold water.",
        "Sie trinkt kaltes Wasser.",
        "Elle boit de l'eau froide.",
    ),
    "mass with quality": (
        Clause(SHE, "drink", direct=Noun("wine", "mass", quality="good")),
        "She drinks good wine.",
        "Sie trinkt guten Wein.",
        "Elle boit du bon vin.",
    ),
    "kein, pas de": (
        Clause(HE, "drink", polarity="not", direct=Noun("milk", "mass", trait="warm")),
        "He does not drink warm milk.",
        "Er trinkt keine warme Milch.",
        "Il ne boit pas de lait chaud.",
    ),
    "kein with a": (
        Clause(MAN, "buy", polarity="not", tense="past", direct=Noun("apple", "a", trait="red")),
        "The man did not buy a red apple.",
        "Der Mann kaufte keinen roten Apfel.",
        "L'homme n'a pas acheté de pomme rouge.",
    ),
    "nicht": (
        Clause(WOMAN, "love", polarity="not", direct=Noun("king", "her")),
        "The woman does not love her king.",
        "Die Frau liebt ihren König nicht.",
        "La femme n'aime pas son roi.",
    ),
    "never": (
        Clause(Noun("horse", plural=True), "sleep", polarity="never", places=(Place("in", Noun("house")),)),
        "The horses never sleep in the house.",
        "Die Pferde schlafen nie im Haus.",
        "Les chevaux ne dorment jamais dans la maison.",
    ),
    "separable, main": (
        Clause(Noun("girl"), "open", direct=Noun("window", plural=True), time=TODAY),
        "The girl opens the windows today.",
        "Das Mädchen macht heute die Fenster auf.",
        "La fille ouvre les fenêtres aujourd'hui.",
    ),
    "separable, past, pronoun": (
        Clause(Noun("queen"), "invite", tense="past", direct=SHE, time=Time("day", "Monday")),
        "The queen invited her on Monday.",
        "Die Königin lud sie am Montag ein.",
        "La reine l'a invitée lundi.",
    ),
    "separable, perfect": (
        Clause(Noun("brother", "my"), "call", tense="perfect", direct=HE),
        "My brother has called him.",
        "Mein Bruder hat ihn angerufen.",
        "Mon frère l'a appelé.",
    ),
    "perfect with sein": (
        Clause(Noun("sister", "our", True), "arrive", tense="perfect"),
        "Our sisters have arrived.",
        "Unsere Schwestern sind angekommen.",
        "Nos sœurs sont arrivées.",
    ),
    "reflexive perfect": (
        Clause(Name("Anna"), "get up", tense="perfect", polarity="not"),
        "Anna has not got up.",
        "Anna ist nicht aufgestanden.",
        "Anna ne s'est pas levée.",
    ),
    "reflexive, first person": (
        Clause(WE, "wake up", time=Time("clock", 1)),
        "We wake up at one o'clock.",
        "Wir wachen um ein Uhr auf.",
        "Nous nous réveillons à une heure.",
    ),
    "future": (
        Clause(Noun("knight", plural=True), "return", tense="future", time=Time("word", "tomorrow"), front="time"),
        "Tomorrow the knights will return.",
        "Morgen werden die Ritter zurückkommen.",
        "Demain, les chevaliers reviendront.",
    ),
    "modal": (
        Clause(ME, "carry", modal="must", direct=Noun("suitcase", "the", True, trait="heavy")),
        "I must carry the heavy suitcases.",
        "Ich muss die schweren Koffer tragen.",
        "Je dois porter les valises lourdes.",
    ),
    "modal, clitic, negation": (
        Clause(HE, "see", modal="can", polarity="not", direct=SHE),
        "He cannot see her.",
        "Er kann sie nicht sehen.",
        "Il ne peut pas la voir.",
    ),
    "modal, past": (
        Clause(Noun("grandfather", "his", True), "turn on", modal="want", tense="past", direct=Noun("lamp", "a")),
        "His grandfathers wanted to turn on a lamp.",
        "Seine Großväter wollten eine Lampe einschalten.",
        "Ses grands-pères voulaient allumer une lampe.",
    ),
    "zu inside the verb": (
        Clause(WOMAN, "close", control="try", direct=Noun("door", trait="heavy")),
        "The woman tries to close the heavy door.",
        "Die Frau versucht, die schwere Tür zuzumachen.",
        "La femme essaie de fermer la porte lourde.",
    ),
    "zu before the verb": (
        Clause(SHE, "see", control="begin", tense="past", direct=HE),
        "She began to see him.",
        "Sie fing an, ihn zu sehen.",
        "Elle a commencé à le voir.",
    ),
    "no contraction with a pronoun": (
        Clause(HE, "feed", control="forget", tense="perfect", direct=HE),
        "He has forgotten to feed him.",
        "Er hat vergessen, ihn zu füttern.",
        "Il a oublié de le nourrir.",
    ),
    "dative before accusative": (
        Clause(MAN, "give", tense="past", direct=Noun("hat", "a"), recipient=Noun("child", plural=True)),
        "The man gave the children a hat.",
        "Der Mann gab den Kindern einen Hut.",
        "L'homme a donné un chapeau aux enfants.",
    ),
    "recipient with elision": (
        Clause(MAN, "show", direct=BOOK, recipient=Noun("actress", "the")),
        "The man shows the actress the book.",
        "Der Mann zeigt der Schauspielerin das Buch.",
        "L'homme montre le livre à l'actrice.",
    ),
    "pronoun recipient": (
        Clause(SHE, "give back", recipient=HE, direct=Noun("key"), time=TODAY),
        "She gives him back the key today.",
        "Sie gibt ihm heute den Schlüssel zurück.",
        "Elle lui rend la clé aujourd'hui.",
    ),
    "genitive": (
        Clause(Noun("dog", "owner", trait="black", owner=Noun("king", quality="old")), "laugh"),
        "The old king's black dog laughs.",
        "Der schwarze Hund des alten Königs lacht.",
        "Le chien noir du vieux roi rit.",
    ),
    "genitive, weak noun": (
        Clause(ME, "see", direct=Noun("house", "owner", True, owner=Noun("boy", "this"))),
        "I see this boy's houses.",
        "Ich sehe die Häuser dieses Jungen.",
        "Je vois les maisons de ce garçon.",
    ),
    "owner by name": (
        Clause(HE, "work", places=(Place("with", Noun("uncle", "owner", quality="good", owner=Name("Anna"))),)),
        "He works with Anna's good uncle.",
        "Er arbeitet mit Annas gutem Onkel.",
        "Il travaille avec le bon oncle d'Anna.",
    ),
    "im and ins": (
        Clause(Noun("rabbit"), "run", places=(Place("into", Noun("castle")),)),
        "The rabbit runs into the castle.",
        "Das Kaninchen rennt ins Schloss.",
        "Le lapin court dans le château.",
    ),
    "zum, au": (
        Clause(Noun("monk"), "go", tense="past", places=(Place("to", Noun("market")),)),
        "The monk went to the market.",
        "Der Mönch ging zum Markt.",
        "Le moine est allé au marché.",
    ),
    "zur, à l'": (
        Clause(ME, "go", places=(Place("to", Noun("school")),)),
        "I go to the school.",
        "Ich gehe zur Schule.",
        "Je vais à l'école.",
    ),
    "next to, du": (
        Clause(SHE, "wait", tense="past", polarity="not", places=(Place("next to", Noun("hotel")),)),
        "She did not wait next to the hotel.",
        "Sie wartete nicht neben dem Hotel.",
        "Elle n'a pas attendu à côté de l'hôtel.",
    ),
    "place first": (
        Clause(Noun("wolf", plural=True), "sleep", places=(Place("behind", Noun("church")),), front="place"),
        "Behind the church, the wolves sleep.",
        "Hinter der Kirche schlafen die Wölfe.",
        "Derrière l'église, les loups dorment.",
    ),
    "for somebody": (
        Clause(WE, "buy", direct=Noun("flower", "some", True), places=(Place("for", HE),)),
        "We buy some flowers for him.",
        "Wir kaufen einige Blumen für ihn.",
        "Nous achetons quelques fleurs pour lui.",
    ),
    "dass": (
        Clause(MAN, "say", complement=Complement("that", Clause(SHE, "open", direct=Noun("door")))),
        "The man says that she opens the door.",
        "Der Mann sagt, dass sie die Tür aufmacht.",
        "L'homme dit qu'elle ouvre la porte.",
    ),
    "ob": (
        Clause(ME, "know", polarity="not", complement=Complement("whether", Clause(HE, "come", tense="future"))),
        "I do not know whether he will come.",
        "Ich weiß nicht, ob er kommen wird.",
        "Je ne sais pas s'il viendra.",
    ),
    "dass und dass": (
        Clause(SHE, "hope", complement=Complement("that", Clause(HE, "sing", modal="can"), Clause(ME, "dance"))),
        "She hopes that he can sing and that I dance.",
        "Sie hofft, dass er singen kann und dass ich tanze.",
        "Elle espère qu'il peut chanter et que je danse.",
    ),
    "weil": (
        Adverbial(
            Clause(WOMAN, "laugh", tense="past"), "because", Clause(Noun("cow"), "bite", tense="past", direct=HE)
        ),
        "The woman laughed because the cow bit him.",
        "Die Frau lachte, weil die Kuh ihn biss.",
        "La femme a ri parce que la vache l'a mordu.",
    ),
    "wenn first": (
        Adverbial(Clause(ME, "help", tense="future", direct=HE), "if", Clause(HE, "arrive"), front=True),
        "If he arrives, I will help him.",
        "Wenn er ankommt, werde ich ihm helfen.",
        "S'il arrive, je l'aiderai.",
    ),
    "während": (
        Adverbial(Clause(WE, "work"), "while", Clause(Name("Anna"), "fall asleep")),
        "We work while Anna falls asleep.",
        "Wir arbeiten, während Anna einschläft.",
        "Nous travaillons pendant qu'Anna s'endort.",
    ),
    "und, aber": (
        Joined(Clause(HE, "eat", direct=Noun("soup")), "but", Clause(ME, "try on", direct=Noun("coat"))),
        "He eats the soup, but I try on the coat.",
        "Er isst die Suppe, aber ich probiere den Mantel an.",
        "Il mange la soupe, mais j'essaie le manteau.",
    ),
    "und wenn": (
        Joined(SLEEPS, "and", Adverbial(Clause(ME, "wait"), "if", Clause(HE, "sleep"), front=True)),
        "The dog sleeps, and if he sleeps, I wait.",
        "Der Hund schläft, und wenn er schläft, warte ich.",
        "Le chien dort, et s'il dort, j'attends.",
    ),
    "relative, subject": (
        Clause(relative("woman", "subject", "sing", tense="perfect"), "see", direct=HE),
        "The woman who has sung sees him.",
        "Die Frau, die gesungen hat, sieht ihn.",
        "La femme qui a chanté le voit.",
    ),
    "relative, object at the end": (
        Clause(HE, "lose", tense="perfect", direct=relative("shirt", "direct", "buy", ME, tense="past")),
        "He has lost the shirt that I bought.",
        "Er hat das Hemd verloren, das ich kaufte.",
        "Il a perdu la chemise que j'ai achetée.",
    ),
    "relative, dative": (
        Clause(relative("man", "direct", "help", WE, plural=True), "sleep"),
        "The men whom we help sleep.",
        "Die Männer, denen wir helfen, schlafen.",
        "Les hommes que nous aidons dorment.",
    ),
    "relative, à qui": (
        Clause(relative("girl", "direct", "answer", SHE), "cry"),
        "The girl whom she answers cries.",
        "Das Mädchen, dem sie antwortet, weint.",
        "La fille à qui elle répond pleure.",
    ),
    "pair": (
        Clause(Both(WOMAN, Noun("aunt", "my")), "return", tense="perfect"),
        "The woman and my aunt have returned.",
        "Die Frau und meine Tante sind zurückgekommen.",
        "La femme et ma tante sont revenues.",
    ),
    "copula": (
        Clause(Noun("city", plural=True), "be", kind="be", adjective="beautiful", degree="very"),
        "The cities are very beautiful.",
        "Die Städte sind sehr schön.",
        "Les villes sont très belles.",
    ),
    "comparison in a clause": (
        Clause(
            ME,
            "think",
            complement=Complement(
                "that", Clause(DOG, "be", kind="be", adjective="old", degree="more", than=Noun("cat", "their"))
            ),
        ),
        "I think that the dog is older than their cat.",
        "Ich denke, dass der Hund älter ist als ihre Katze.",
        "Je pense que le chien est plus vieux que leur chat.",
    ),
    "there are": (
        Clause(
            Noun("bird", "number", True, numeral=91),
            "be",
            kind="there",
            tense="past",
            places=(Place("on", Noun("roof")),),
        ),
        "There were ninety-one birds on the roof.",
        "Es gab einundneunzig Vögel auf dem Dach.",
        "Il y avait quatre-vingt-onze oiseaux sur le toit.",
    ),
    "number that agrees and elides nothing": (
        Clause(HE, "say", complement=Complement("that", Clause(Noun("cow", "number", True, numeral=11), "sleep"))),
        "He says that eleven cows sleep.",
        "Er sagt, dass elf Kühe schlafen.",
        "Il dit que onze vaches dorment.",
    ),
    "hundreds": (
        Clause(HE, "sell", direct=Noun("cup", "number", True, numeral=221 + 100)),
        "He sells three hundred and twenty-one cups.",
        "Er verkauft dreihunderteinundzwanzig Tassen.",
        "Il vend trois cent vingt et une tasses.",
    ),
    "frequency": (
        Clause(Noun("mouse", plural=True), "steal", frequency="often", direct=Noun("cheese")),
        "The mice often steal the cheese.",
        "Die Mäuse stehlen oft den Käse.",
        "Les souris volent souvent le fromage.",
    ),
    "frequency in the perfect": (
        Clause(SHE, "forget", tense="perfect", frequency="always", direct=Noun("umbrella", "my")),
        "She has always forgotten my umbrella.",
        "Sie hat immer meinen Regenschirm vergessen.",
        "Elle a toujours oublié mon parapluie.",
    ),
    "question": (
        Question(Clause(HE, "turn off", tense="past", direct=Noun("radio", "a"))),
        "Did he turn off a radio?",
        "Schaltete er ein Radio aus?",
        "Est-ce qu'il a éteint une radio ?",
    ),
    "question word": (
        Question(Clause(Noun("bear"), "wait", tense="perfect"), "where"),
        "Where has the bear waited?",
        "Wo hat der Bär gewartet?",
        "Où est-ce que l'ours a attendu ?",
    ),
    "feminine with mon": (
        Clause(Noun("school", "my"), "be", kind="be", tense="future", polarity="not", adjective="new"),
        "My school will not be new.",
        "Meine Schule wird nicht neu sein.",
        "Mon école ne sera pas nouvelle.",
    ),
    "stem that changes": (
        Clause(Noun("coat", "a", trait="expensive"), "be", kind="be", tense="past", adjective="dark", time=YESTERDAY),
        "An expensive coat was dark yesterday.",
        "Ein teurer Mantel war gestern dunkel.",
        "Un manteau cher était sombre hier.",
    ),
    "every": (
        Clause(Noun("knight", "every", trait="tired"), "smile"),
        "Every tired knight smiles.",
        "Jeder müde Ritter lächelt.",
        "Chaque chevalier fatigué sourit.",
    ),
    "first person stems": (
        Joined(Clause(ME, "smile"), "and", Clause(ME, "feed", direct=Noun("lion", "a"))),
        "I smile, and I feed a lion.",
        "Ich lächle, und ich füttere einen Löwen.",
        "Je souris, et je nourris un lion.",
    ),
}


def test_there_are_enough_golden_pairs():
    assert len(GOLDEN) >= 40


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name):
    meaning, *sentences = GOLDEN[name]
    assert [REALISERS[language](meaning) for language in ("en", "de", "fr")] == sentences


# ------------------------------------------------------------------------------------------------- number words

NUMBERS = {
    0: ("zero", "null", "zéro"),
    1: ("one", "eins", "un"),
    11: ("eleven", "elf", "onze"),
    12: ("twelve", "zwölf", "douze"),
    16: ("sixteen", "sechzehn", "seize"),
    17: ("seventeen", "siebzehn", "dix-sept"),
    20: ("twenty", "zwanzig", "vingt"),
    21: ("twenty-one", "einundzwanzig", "vingt et un"),
    22: ("twenty-two", "zweiundzwanzig", "vingt-deux"),
    30: ("thirty", "dreißig", "trente"),
    37: ("thirty-seven", "siebenunddreißig", "trente-sept"),
    40: ("forty", "vierzig", "quarante"),
    56: ("fifty-six", "sechsundfünfzig", "cinquante-six"),
    61: ("sixty-one", "einundsechzig", "soixante et un"),
    70: ("seventy", "siebzig", "soixante-dix"),
    71: ("seventy-one", "einundsiebzig", "soixante et onze"),
    72: ("seventy-two", "zweiundsiebzig", "soixante-douze"),
    77: ("seventy-seven", "siebenundsiebzig", "soixante-dix-sept"),
    80: ("eighty", "achtzig", "quatre-vingts"),
    81: ("eighty-one", "einundachtzig", "quatre-vingt-un"),
    90: ("ninety", "neunzig", "quatre-vingt-dix"),
    91: ("ninety-one", "einundneunzig", "quatre-vingt-onze"),
    99: ("ninety-nine", "neunundneunzig", "quatre-vingt-dix-neuf"),
    100: ("one hundred", "einhundert", "cent"),
    101: ("one hundred and one", "einhunderteins", "cent un"),
    116: ("one hundred and sixteen", "einhundertsechzehn", "cent seize"),
    180: ("one hundred and eighty", "einhundertachtzig", "cent quatre-vingts"),
    200: ("two hundred", "zweihundert", "deux cents"),
    271: ("two hundred and seventy-one", "zweihunderteinundsiebzig", "deux cent soixante et onze"),
    700: ("seven hundred", "siebenhundert", "sept cents"),
    999: ("nine hundred and ninety-nine", "neunhundertneunundneunzig", "neuf cent quatre-vingt-dix-neuf"),
}


@pytest.mark.parametrize("number", NUMBERS)
def test_number_words(number):
    assert (number_words.english(number), number_words.german(number), number_words.french(number)) == NUMBERS[number]


def test_every_number_has_words_of_its_own():
    for words in (number_words.english, number_words.german, number_words.french):
        assert len({words(number) for number in range(1000)}) == 1000
        for outside in (-1, 1000):
            with pytest.raises(ValueError, match="0 to 999"):
                words(outside)


def test_french_numbers_agree_in_gender_only_at_one():
    ends_in_one = {n for n in range(1000) if number_words.french(n) != number_words.french(n, feminine=True)}
    assert ends_in_one == {n for n in range(1000) if n % 100 in (1, 21, 31, 41, 51, 61, 81)}
    assert number_words.french(381, feminine=True) == "trois cent quatre-vingt-une"


# --------------------------------------------------------------------------------------------------- morphology

# masculine, feminine, neuter, plural of "gut" with its determiner and noun, in the order of german.CASES
NOUN_PHRASES = {
    ("the", False): {
        "man": "der gute Mann|den guten Mann|dem guten Mann|des guten Mannes",
        "woman": "die gute Frau|die gute Frau|der guten Frau|der guten Frau",
        "child": "das gute Kind|das gute Kind|dem guten Kind|des guten Kindes",
    },
    ("a", False): {
        "man": "ein guter Mann|einen guten Mann|einem guten Mann|eines guten Mannes",
        "woman": "eine gute Frau|eine gute Frau|einer guten Frau|einer guten Frau",
        "child": "ein gutes Kind|ein gutes Kind|einem guten Kind|eines guten Kindes",
    },
    ("our", True): {
        "man": "unsere guten Männer|unsere guten Männer|unseren guten Männern|unserer guten Männer",
    },
    ("the", True): {
        "woman": "die guten Frauen|die guten Frauen|den guten Frauen|der guten Frauen",
        "child": "die guten Kinder|die guten Kinder|den guten Kindern|der guten Kinder",
    },
    ("some", True): {
        "man": "einige gute Männer|einige gute Männer|einigen guten Männern|einiger guter Männer",
    },
    ("this", False): {
        "prince": "dieser gute Prinz|diesen guten Prinzen|diesem guten Prinzen|dieses guten Prinzen",
    },
    ("every", False): {
        "girl": "jedes gute Mädchen|jedes gute Mädchen|jedem guten Mädchen|jedes guten Mädchens",
    },
    ("mass", False): {
        "wine": "guter Wein|guten Wein|gutem Wein|guten Weins",
        "milk": "gute Milch|gute Milch|guter Milch|guter Milch",
        "beer": "gutes Bier|gutes Bier|gutem Bier|guten Biers",
    },
}


@pytest.mark.parametrize(
    ("det", "plural", "noun"), [(*key, noun) for key, nouns in NOUN_PHRASES.items() for noun in nouns]
)
def test_german_declension(det, plural, noun):
    phrase = Noun(noun, det, plural, quality="good")
    forms = "|".join(" ".join(german.noun_phrase(phrase, case)) for case in german.CASES)
    assert forms == NOUN_PHRASES[det, plural][noun]


def test_adjective_endings_are_the_whole_table():
    table = {
        "strong": ["er e es e", "en e es e", "em er em en", "en er en er"],
        "weak": ["e e e en", "en e e en", "en en en en", "en en en en"],
        "mixed": ["er e es en", "en e es en", "en en en en", "en en en en"],
    }
    for declension, rows in table.items():
        for case, row in zip(german.CASES, rows, strict=True):
            forms = [german.adjective_form("new", declension, case, gender, False) for gender in "mfn"]
            forms.append(german.adjective_form("new", declension, case, "m", True))
            assert forms == ["neu" + ending for ending in row.split()]


def test_french_agreement():
    forms = {
        "white": "blanc blanche blancs blanches",
        "happy": "heureux heureuse heureux heureuses",
        "expensive": "cher chère chers chères",
        "old": "vieux vieille vieux vieilles",
        "grey": "gris grise gris grises",
    }
    for adjective, expected in forms.items():
        made = [french.adjective_form(adjective, g, plural) for plural in (False, True) for g in "mf"]
        assert made == expected.split()
    assert french.adjective_form("new", "m", False, before="hôtel") == "nouvel"
    assert french.adjective_form("new", "m", False, before="lit") == "nouveau"
    assert [french.plural(noun) for noun in ("horse", "castle", "bear", "grandmother", "hospital", "dog")] == [
        *("chevaux", "châteaux", "ours", "grands-mères", "hôpitaux", "chiens")
    ]


def test_lexicons_hold_every_concept_and_nothing_else():
    verbs = {
        *concepts.FRAMES,
        *concepts.CONTROLS,
        *concepts.MODALS,
        *concepts.THAT_VERBS,
        *concepts.WHETHER_VERBS,
        "be",
    }
    for lexicon in (lexicon_de, lexicon_fr):
        assert set(lexicon.NOUNS) == set(concepts.NOUNS)
        assert set(lexicon.ADJECTIVES) == set(concepts.ADJECTIVES)
        assert set(lexicon.VERBS) - {"there"} == verbs
        assert set(lexicon.PREPOSITIONS) == {*concepts.WHERE, *concepts.DIRECTIONS, "with", "without", "for"}
    assert set(lexicon_en.COMPARATIVES) <= set(concepts.ADJECTIVES) - set(concepts.NOT_COMPARED)
    assert set(lexicon_en.PLURALS) <= set(concepts.NOUNS)


def test_english_forms_name_one_concept_each():
    """No English form of one noun or verb is a form of another, and no verb has one form for present and past."""
    nouns = [form for noun in concepts.NOUNS for form in {noun, english.plural(noun)}]
    assert len(set(nouns)) == len(nouns)
    seen = {}
    for verb in (*concepts.FRAMES, *concepts.CONTROLS, *concepts.THAT_VERBS, "ask", "want"):
        base, third, past, _ = (" ".join(english._verb(verb, form)) for form in ("base", "3s", "past", "participle"))
        if verb != "give back":  # told from "give" by the "back" behind its recipient
            assert past not in (base, third)
            for form in {base, third, past}:
                assert seen.setdefault(form, verb) == verb


def test_verbs_that_show_their_subjects_gender_are_those_with_etre():
    with_etre = {verb for verb in concepts.FRAMES if french._Verb(verb).with_etre}
    assert with_etre == set(concepts.SHOWS_SUBJECT_GENDER)


# --------------------------------------------------------------------------------------------------- the corpus


def sample(deep, count, seed=5):
    sampler = Sampler(random.Random(seed), deep)
    return [sampler.sentence() for _ in range(count)]


@pytest.fixture(scope="module")
def realised():
    meanings = [*sample(False, 12000), *sample(True, 1000)]
    return [tuple(REALISERS[language](meaning) for language in ("en", "de", "fr")) for meaning in meanings]


def test_an_english_sentence_has_one_translation(realised):
    translations = {}
    for source, *targets in realised:
        assert translations.setdefault(source, targets) == targets
    assert len(translations) < len(realised)  # some are drawn twice, so that the test can fail


def test_spelling(realised):
    infinitives = {french._Verb(verb).infinitive for verb in concepts.FRAMES}
    for source, german_text, french_text in realised:
        for text in (source, german_text, french_text):
            assert text[0].isupper() and text[-1] in ".?" and "  " not in text and ",," not in text and " ," not in text
            assert ",." not in text and text[:-1].count(".") == 0
        words = french_text.lower().replace(",", "").split()
        for word, following, after in zip(words, words[1:], [*words[2:], ""], strict=False):
            assert not (
                word in ("le", "la", "je", "ne", "de", "que", "me", "se") and french.starts_with_vowel(following)
            )
            # the article joins de and à; a pronoun before an infinitive does not
            if word in ("de", "à") and following in ("le", "les"):
                assert following == "le" and after.rstrip(".?") in infinitives
        assert ", und," not in german_text and ", aber," not in german_text
        for article in (" in dem ", " in das ", " zu dem ", " zu der "):
            assert article not in " " + german_text.lower()


def test_sampler_never_draws_what_english_leaves_open():
    def clauses(node, found):
        if isinstance(node, Clause):
            found.append(node)
        for value in getattr(node, "__dict__", {}).values():
            for item in value if isinstance(value, tuple) else (value,):
                clauses(item, found)
        return found

    seen = [clause for meaning in [*sample(False, 5000), *sample(True, 1000)] for clause in clauses(meaning, [])]
    assert len(seen) > 8000
    for clause in seen:
        if clause.subject in (ME, WE):
            assert clause.kind == "verb"
            bare = clause.tense in ("past", "perfect") and not clause.modal and not clause.control
            assert not (bare and clause.verb in concepts.SHOWS_SUBJECT_GENDER)
            assert clause.direct not in (ME, WE) and clause.recipient not in (ME, WE)
        if clause.direct in (ME, WE):
            assert clause.tense in ("present", "future") or clause.modal or clause.control
        relative_object = isinstance(clause.direct, Noun) and clause.direct.relative
        if relative_object or clause.control or clause.complement:
            assert clause.time is None or clause.front == "time"
        if relative_object:
            assert not clause.places and not isinstance(clause.recipient, Noun | Name)
        if isinstance(clause.subject, Noun) and clause.subject.relative:
            assert clause.frequency is None and clause.polarity != "never"
        if Gap in (type(clause.subject), type(clause.direct)):
            assert clause.time is None
        if clause.polarity != "yes":
            for phrase in (clause.subject, clause.recipient):
                assert (
                    not isinstance(phrase, Noun)
                    or clause.kind != "verb"
                    or phrase.det not in ("some", "many", "every", "number")
                )
        assert clause.modal != "must" or clause.polarity == "yes"


SIZES = {"train": 2000, "valid": 100, "test": 100, "test_long": 60}


@pytest.fixture(scope="module", params=make_corpus.PAIRS)
def sets(request):
    return make_corpus.build(request.param, SIZES, seed=1)


def test_sizes_and_no_overlap(sets):
    assert {name: len(pairs) for name, pairs in sets.items()} == SIZES
    for side in (0, 1):
        sentences = [pair[side] for pairs in sets.values() for pair in pairs]
        assert len(set(sentences)) == len(sentences)


def test_lengths(sets):
    for side in (0, 1):
        lengths = {name: [make_corpus.length(pair[side]) for pair in pairs] for name, pairs in sets.items()}
        longest = max(lengths["train"])
        assert min(lengths["test_long"]) > longest
        assert max(lengths["test"] + lengths["valid"]) <= longest <= 21
        mean = {name: sum(values) / len(values) for name, values in lengths.items()}
        assert abs(mean["test"] - mean["train"]) < 1.5
        assert mean["test_long"] > 2 * mean["train"]


def test_length_counts_words_and_marks():
    assert make_corpus.length("At two o'clock, l'homme voit vingt-trois chiens.") == 9


def run(*arguments):
    return make_corpus.main([str(argument) for argument in arguments])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


SMALL = ("--train", 50, "--valid", 5, "--test", 5, "--test-long", 3)


@pytest.mark.parametrize("pair", make_corpus.PAIRS)
def test_the_command_is_deterministic_and_complete(tmp_path, pair, capsys):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert run("--pair", pair, "--out", tmp_path / name, *SMALL, "--seed", seed) == 0
    first = contents(tmp_path / "a")
    assert set(first) == {f"{name}.{language}" for name in make_corpus.SETS for language in pair.split("-")}
    assert first == contents(tmp_path / "b")
    assert first["train.en"] != contents(tmp_path / "c")["train.en"]
    target = pair[-2:]
    assert len(first["train.en"].decode().splitlines()) == len(first[f"train.{target}"].decode().splitlines()) == 50
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]  # nothing left beside them
    assert "train 50, valid 5, test 5, test_long 3" in capsys.readouterr().out


def test_a_folder_in_use_keeps_its_other_files(tmp_path):
    (tmp_path / "notes").write_text("mine")
    assert run("--pair", "en-de", "--out", tmp_path, *SMALL) == 0
    assert (tmp_path / "notes").read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 9


def test_empty_sets(tmp_path):
    assert (
        run("--pair", "en-fr", "--out", tmp_path / "x", "--train", 0, "--valid", 0, "--test", 0, "--test-long", 0) == 0
    )
    assert set(contents(tmp_path / "x").values()) == {b""}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--pair", "en-xx"), "invalid choice: 'en-xx'"),
        (("--pair", "en-de", "--train", "-5"), "'-5' is not a number of sentences (0 to 1000000)"),
        (("--pair", "en-de", "--test-long", "many"), "'many' is not a number of sentences"),
        (("--pair", "en-de", "--valid", "1.5"), "'1.5' is not a number of sentences"),
        (("--pair", "en-de", "--train", "9999999"), "'9999999' is not a number of sentences"),
        (("--pair", "en-de", "--seed", "x"), "invalid int value: 'x'"),
        ((), "required: --pair"),
    ],
)
def test_bad_arguments_get_one_line(tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        run("--out", tmp_path / "x", *arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "x").exists()


def test_a_file_in_the_way(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        assert run("--pair", "en-de", "--out", out, *SMALL) == 1
        error = capsys.readouterr().err
        assert str(out) in error and error.count("\n") == 1
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder(tmp_path, capsys):
    tmp_path.chmod(0o555)
    assert run("--pair", "en-de", "--out", tmp_path / "x", *SMALL) == 1
    assert "Permission denied" in capsys.readouterr().err


def test_two_translations_are_refused(monkeypatch):
    answers = iter(range(10**6))
    monkeypatch.setitem(make_corpus.REALISERS, "de", lambda meaning: f"Satz {next(answers)}.")
    with pytest.raises(ValueError, match="two translations"):
        make_corpus.Corpus("en-de", 1).draw(3000, deep=False)


def test_no_write_error_leaves_half_a_corpus(tmp_path, monkeypatch):
    def full(self, *args, **kwargs):
        if self.name == "test.de":
            raise OSError(28, "No space left on device")
        return original(self, *args, **kwargs)

    original = Path.write_text
    monkeypatch.setattr(Path, "write_text", full)
    assert run("--pair", "en-de", "--out", tmp_path / "x", *SMALL) == 1
    assert not list(tmp_path.iterdir())
