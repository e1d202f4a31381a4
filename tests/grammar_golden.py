"""Hand-written meanings of the quick start's grammar with their English, German and French sentences."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "quickstart"))

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
