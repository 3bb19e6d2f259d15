"""The closed lists: what an answer may contain."""


def _list(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _with_plurals(text: str) -> frozenset[str]:
    return _list(text) | {f"{word}s" for word in _list(text) if len(word) > 2}


GREEK = _list(
    """alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho varrho sigma
    varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega ell hbar"""
)
FUNCTIONS = _list(
    """sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth sech csch arcsinh arccosh
    arctanh arsinh arcosh artanh ln log lg exp
    gcd lcm max min deg det arg sgn cis sqrt abs floor ceil ceiling zeta Re Im"""
)
"""Applied to what follows: as commands, as `\\operatorname{…}`, and as words."""
SPACES = frozenset(["\\,", "\\;", "\\:", "\\!", "\\ ", "\\quad", "\\qquad", "\\thinspace", "\\medspace", "\\enspace"])
SIZES = _list(
    """left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle textstyle scriptstyle large
    Large LARGE huge Huge small normalsize limits nolimits middle bf rm it sf tt"""
)
"""Commands that change how an answer looks, without an argument."""
FRAMES = _list("""mathbf mathit mathsf mathtt boldsymbol bm underline boxed fbox mathstrut smash""")
"""The same, with one argument."""
UPRIGHT = _list("text mathrm textbf textrm textit textnormal textsf texttt mbox operatorname hbox")
"""Words, units, names of functions, or upright digits."""
ACCENTS = _list("hat bar tilde dot ddot overline widehat widetilde mathcal mathbb mathfrak mathscr")
VECTORS = _list("vec overrightarrow")
RELATIONS = {
    "=": "=", "<": "<", ">": ">", "\\lt": "<", "\\gt": ">", "\\le": "<=", "\\leq": "<=", "\\leqslant": "<=",
    "\\ge": ">=", "\\geq": ">=", "\\geqslant": ">=", "\\ne": "!=", "\\neq": "!=", "\\in": "in", "\\equiv": "equiv",
    "\\to": "to", "\\rightarrow": "to", "\\longrightarrow": "to", "\\mapsto": "mapsto", "\\longmapsto": "mapsto",
}  # fmt: skip
LONE_UNITS = _list("m s g h K J N W V A F H C T L Omega")
UNITS = _with_plurals(
    """acre amp ampere amps angstrom arcsec astronomical atm atom AU barn bit bits byte cal celsius cent centimeter
    centimetre cm coulomb cu cubic day days dB decade deg degree dm dollar dyn dyne earth electronvolt erg ergs EUR euro
    eV fahrenheit farad feet fluid foot fps ft furlong gallon gauss GBP GeV GHz gram hectare henry hertz hour hr hrs Hz
    in inch inches joule kcal kelvin keV kg kHz kilogram kilojoule kilometer kilometre kilowatt kJ km kmh kmol kN kohm
    kPa kpc kph kV kW kWh lb lbs light lightyear liter litre luminosities luminosity ly mA mass masses meter metre MeV
    mg MHz mi mile milligram milliliter millimeter millisecond min mins minute mL ml mm mmol Mohm mol mole molecule
    month MPa Mpc mph ms mV newton nm ns ohm ohms ounce oz Pa parsec particles pascal pc pct pence pennies penny per
    percent percentage pint pm pound ppm psi quart rad radian radii rpm rupee sec second secs solar sq square steradian
    sun tesla ton tonne tons uA uC uF ug uH uJ uL um unit us USD uV uW volt watt week Wh yard yd year yen yuan"""
)
SIZES_OF_UNITS = (
    {"week": 604800, "day": 86400, "hour": 3600, "hr": 3600, "h": 3600}
    | {"minute": 60, "min": 60, "second": 1, "sec": 1, "s": 1},
    {"yard": 36, "yd": 36, "foot": 12, "feet": 12, "ft": 12, "inch": 1, "inche": 1, "in": 1},
    {"pound": 16, "lb": 16, "ounce": 1, "oz": 1},
)
"""Units that stand behind one another, without their plural: 2 hours 30 minutes."""
NOUNS = _with_plurals(
    """adult altogether animal ant apple arrangement bag ball banana bead bear bee bicycle bike bird block boat book
    bottle box boxes boy bracelet branch branches brick brother brownie bulb bus buses butterflies butterfly cake call
    candies candy car card carrot cat chair chapter cherries cherry chicken child children choice class classes coin
    color colour combination computer cookie cousin cow crayon cube cup cupcake customer cycle dancer diagonal dice
    digit dime dog doll donut door duck edge egg element elephant email employee episode error face factor families
    family fan fish flight floor flower friend fruit function game geese girl glass glasses goal goat golf goose
    grandchildren grape group guest hen hit horse house household integer intersection item jump kid kitten lap lattice
    leaf leaves lemon lesson letter line lion man marble marker match matches member men message mile monkey more
    motorcycle move movie muffin nail necklace nickel number onion orange order outcome package page painting pair
    parent passenger path patient peach peaches pear pen pencil people permutation person phone photo picture pie piece
    pig pizza plane plank plant player point polynomial potato potatoes prime problem pumpkin puppies puppy question
    rabbit rectangle region revolution road rock room rose rotation row run runner sandwich sandwiches screw seat seed
    sequence sheep shelf shell shelves ship shirt show sibling side sister slice sock solution song spider square stamp
    step stick sticker stone store strawberries strawberry strike student subset swimmer table tablet teacher team term
    ticket tiger tile tire tomato tomatoes total toy train tree triangle trip truck tulip turkey turn value vegetable
    vertex vertices vote way wheel win window woman women word worker zero zeroes яблок яблока"""
)
"""Things that are counted."""
SCALES = {
    "hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12,
    "lakh": 10**5, "crore": 10**7, "hundreds": 10**2, "thousands": 10**3, "millions": 10**6, "billions": 10**9,
    "trillions": 10**12, "dozens": 12,
}  # fmt: skip
CHINESE_SCALES = {
    "十": 10, "百": 100, "千": 1000, "万": 10**4, "十万": 10**5, "百万": 10**6, "千万": 10**7, "亿": 10**8,
}  # fmt: skip
"""Characters of a number, not of a unit: 千米 is a kilometre, and 百分 a percent."""
_COUNTED = """one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen"""
NUMERALS = {word: place for place, word in enumerate(_COUNTED.split(), start=1)} | {
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
    "hundred": 100,
}  # fmt: skip
PARTS = {
    "half": 2, "third": 3, "thirds": 3, "quarter": 4, "quarters": 4, "fourth": 4, "fourths": 4, "fifth": 5, "fifths": 5,
}  # fmt: skip
"""Behind a number in words: two thirds."""
WORDS = _list(
    """all always april august black blue both circle convergent converges december decreasing defined divergent
    diverges does down each east ellipse even exist false february friday green hyperbola impossible increasing
    infinite infinity is are january july june left line many march may monday more negative neither never no none north
    not november numbers october odd only parabola parallel perpendicular point positive possible real red right
    saturday september solution solutions some sometimes south sunday thursday true tuesday undefined up wednesday
    west white yellow yes"""
)
"""Words that may stand outside of `\\text{…}` and are no product of letters."""
NAMES = _list(
    """area volume perimeter sum total answer probability cost price speed length width height angle distance time
    number average mean median mode slope radius diameter maximum minimum range ratio percentage profit age weight
    mass energy force power density temperature"""
)
"""Words that name a value before an equals sign."""
FILLERS = _list("the answer is it option choice exactly equal equals to there a an on final exists quadrant quadrants")
"""Words around an answer that say nothing."""
SYNONYMS = {
    "negativeinfinity": "-infinity", "positiveinfinity": "infinity", "minusinfinity": "-infinity",
    "nosolution": "emptyset", "nosolutions": "emptyset", "none": "emptyset", "norealsolution": "emptyset",
    "norealsolutions": "emptyset", "emptyset": "emptyset",
}  # fmt: skip
