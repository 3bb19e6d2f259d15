"""Forms in which models write right and wrong answers, by what makes them hard."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from math_answers import equal, explain, extract

NESTED_ROOTS = r"\frac{\sqrt{\sqrt{11}+\sqrt{194}}}{15+2\sqrt{33}}"
LOGARITHMS = r"\frac{\log 2}{\log 2-\log 3}"
GROWTH = r"\frac{d M}{d t} = \frac{10^{5} L_{\odot}}{0.007 c^{2} M_{\odot}^{6}} M^{6}"
PIECEWISE = r"\begin{cases}x & x\ge 0\\ -x & x<0\end{cases}"

# gold: right answers
SAME: dict[str, dict[str, list[str]]] = {
    "numbers": {
        "7": ["007", "+7", "7 apples"],
        "0": ["-0", "00"],
        "1" * 4000: ["0" + "1" * 4000],
        "-0.5": ["-.5"],
        "5": ["5."],
        "204": ["204."],
        "-3": ["−3"],
        "0.0": ["0"],
        "3/4": [r"\frac34", r"-\frac{3}{-4}", r"\frac{1.5}{2}"],
        r"\frac{3}{4}": ["0.75", "3/4", r"\dfrac{6}{8}"],
        "-3/4": [r"\dfrac{-3}{4}"],
        "-1/3": ["-1./3"],
        r"\frac{5}{9}": [r"\frac 59"],
        r"\frac{270}{7}": [r"\tfrac{270}7"],
        r"\frac{1}{8}": ["0.125"],
        "9/5": [r"1\frac{4}{5}"],
        "-5/2": ["-2 1/2"],
        "1/3": [r"0.\overline{3}"],
        r"\frac{118}{55}": [r"2.1\overline{45}"],
        "8": ["2^3"],
        "10000": ["10^4"],
        "-10000": ["-10^4"],
    },
    "powers of ten": {
        "0.00006": ["6e-5"],
        "1/16": [r"6.25 \cdot 10^{-2}"],
        "2500": [r"10^{3} \times 2.5"],
        r"6 \times 10^{-5}": ["0.00006"],
        r"1 \times 10^{5}": ["1e5"],
        r"-2.5 \times 10^{-3}": ["-2.5E-3"],
        "4.5e33": [r"4.5 \times 10^{33}"],
        r"4.5 \times 10^{33}": ["4.5E+33"],
        "1.3e-27": [r"1.3 \cdot 10^{-27}"],
        "3000000": ["3 million"],
        r"5 \times 10^{6}": [r"5 \text{ million}"],
    },
    "units": {
        "50": [r"50\%"],
        r"50\%": ["50"],
        "20": [r"20\%"],
        r"20\%": ["20"],
        "45": [r"45^{\circ}"],
        "30": [r"30^\circ"],
        "336": [r"336^\circ"],
        "3": ["3 apples", r"$\boxed{3}$"],
        "5": ["5 m"],
        "5.4": [r"5.4 \text{ cents}"],
        r"5.4 \text{ cents}": ["5.4"],
        "9.8": ["9.8 m", "9.8 m/s^2"],
        "15": [r"15\text{ cm}^2"],
        "18.5": [r"\$18.50"],
        "864": [r"864 \mbox{ inches}^2"],
        r"2\sqrt{5}": [r"2\sqrt{5} \text{ meters}"],
        r"\frac{1}{2}": [r" x = \dfrac12 \text{ cm}. "],
        "1234": ["$1{,}234$ apples", r"1{,}234 \text{ cm}"],
    },
    "rounded decimals": {
        r"\frac{1}{3}": ["0.333333"],
        "0.333333": [r"\frac{1}{3}"],
        r"\frac{2}{3}": ["0.666667"],
        "0.666667": [r"\frac{2}{3}"],
        r"\sqrt{2}": ["1.41421", "1.414214"],
        r"\frac{\pi}{3}": ["1.047198"],
    },
    "numerals and times": {
        "52_8": ["52_{8}", r"52_{\text{eight}}", "52"],  # the problem names the base
        r"05\!:\!00": [r"05\!:\!00"],
    },
    "points, sets and lists": {
        "(6,31,-1)": ["6, 31, -1"],
        r"\{1,-2\}": ["-2, 1"],
        "1,-2": [r"-2 \text{ or } 1", r"x = -2 \text{ or } x = 1"],
        "1, 2": [r"1 \text{ and } 2"],
        "1, 2, 3": ["1, 2, and 3"],
        "(1,2,3)": ["[1,2,3]"],
        "5": [r"\{5\}"],
        "3 and 4": [r"$3$ and $\$4$"],
        "(1, 200)": [r"(1,\,200)"],
        "(1, 2.5)": [r"(1, \frac{5}{2})"],
        r"(1, 2\sqrt{2})": [r"(1, \sqrt{8})"],
        r"\{1,2\}": [r"\{2,1\}"],
        r"\{1\}": [r"\left\{1\right\}"],
        r"\{(1,2), (3,4)\}": [r"\{(3,4), (1,2)\}"],
        "x, 2y": [r"\{y+y, x\}"],
    },
    "plus and minus": {
        r"\pm 2": ["2, -2"],
        r"1 \pm \sqrt{19}": [r"1-\sqrt{19}, 1+\sqrt{19}"],
        r"\frac{3 \pm \sqrt{5}}{2}": [r"\frac{3 + \sqrt{5}}{2}, \frac{3 - \sqrt{5}}{2}"],
        r"\{1\pm\sqrt{5},-2\}": [r"\{1+\sqrt{5}, 1-\sqrt{5}, -2\}"],
    },
    "intervals": {
        r"(2,12) \cup (12,102)": [r"(12,102) \cup (2,12.0)"],
        r"(2,\infty)": ["x > 2"],
        r"x \in [-2,7]": ["[-2, 7]"],
        "[-2,7]": [r"-2 \le x \le 7"],
        "(3,4]": [r"\left(3, 4\right]", r"\left(3,4\right]"],
        r"(1, \sqrt{8}]": [r"(1.0, 2\sqrt{2}]"],
    },
    "infinity": {r"\infty": [r"\infty"], r"-\infty": [r"-\infty"], r"\frac{1}{0}": [r"\frac{1}{0}"]},
    "matrices": {
        r"\begin{pmatrix} 1/5 \\ 2 \end{pmatrix}": [r"\begin{bmatrix} 0.2 \\ 2 \end{bmatrix}"],
        r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}": [r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"],
    },
    "expressions": {
        "0": [r"\sqrt{2} + \sqrt{3} - \sqrt{5 + 2\sqrt{6}}"],
        r"2\sqrt{3}": [r"\sqrt{12}"],
        r"\frac{\pi}{2}": [r"\frac\pi 2"],
        r"\arcsin(10/13)": ["np.arcsin(10/13)"],
        r"1-\frac{1}{e}": [r"1-\frac{1}{\mathrm{e}}"],
        "x+1": ["((x+1))"],
        "x^2 + 2x + 1": ["(x+1)^2"],
        "(x+1)^9": ["(x+1)^8 (1+x)"],
        r"\alpha": [r"\frac{2\alpha}{2}"],
        r"\gamma^2 - 1": [r"(\gamma-1)(\gamma+1)"],
        r"\sqrt{a b}": [r"\sqrt{a} \sqrt{b}"],
        "f(t) + 1": ["1 + f(t)"],
        "(1+2i)^2 x": ["(4i-3) x"],
    },
    "complex constants": {
        r"\frac{1}{5}+\frac{3}{5}i": [r"\frac{1+3i}{5}", r"\frac{3i+1}{5}", "0.2+0.6i", r"\frac15 + \frac{3i}{5}"],
        "292i": [r"292 \cdot i", r"292\mathrm{i}", r"146i \cdot 2"],
        "6-5i": ["-5i+6", "6 + -5i", r"6 - 5 \cdot i", "z = 6-5i"],
        "1+2i": ["i(2-i)", "1 + i + i", r"1+2\sqrt{-1}", r"1 + 2\mathbf{i}", r"1 + 2\imath"],
        "-1": ["i^2", r"e^{i\pi}"],
        r"\frac{1}{2}+\frac{\sqrt{3}}{2}i": [r"e^{i\pi/3}", r"\cos 60^\circ + i \sin 60^\circ"],
        "3+4i, 3-4i": [r"3 \pm 4i", "3-4i, 3+4i"],
        r"\frac{4 A}{3+3 i} e^{i t}": [r"\frac{4A(1-i)}{6}e^{it}"],
        r"2\mathbf{i}+3\mathbf{j}": [r"3\mathbf{j}+2\mathbf{i}"],
    },
    "slow constants": {
        NESTED_ROOTS: [r"\frac{\sqrt{\sqrt{194}+\sqrt{11}}}{2\sqrt{33}+15}"],
        LOGARITHMS: [r"\frac{\ln 2}{\ln 2-\ln 3}", r"-\frac{\log 2}{\log 3-\log 2}", r"\frac{1}{1-\log_2 3}"],
        "2^{100}": ["4^{50}", "1267650600228229401496703205376"],
        "0": [r"\sin \pi", r"e^{i\pi}+1", r"\sqrt{2}+\sqrt{3}-\sqrt{5+2\sqrt{6}}"],
        "-2": [r"\sqrt[3]{-8}", "(-8)^{1/3}"],
    },
    "equals signs": {
        "5": [
            *("x=5", "5=x", "x = 5", "a=b=5", "n = 2+3 = 5", "2+3=5", r"I_{\max}=5", "f(x)=5", "f(3) = 5", "x_1=5"),
            *("x'=5", r"\alpha = 5", r"\angle ABC = 5", r"m\angle A = 5^\circ", r"\overline{AB}=5", "AB=5", "|AB|=5"),
            *("[ABC]=5", r"\text{Area} = 5 \text{ cm}^2", "Area = 5", "P(A)=5", r"\hat{x}=5", r"x \in \{5\}", "面积=5"),
        ],
        "2,3": [r"x = 2 \text{ or } x=3", "x=2, x=3", "x_1=2, x_2=3", r"x = 2 \text{ or } 3"],
        "(1,2)": ["(x,y)=(1,2)", "x=1, y=2"],
        "x=5": ["5", "5=x"],
        "y=2x+3": ["2x+3", "2x+3=y", "y-2x=3"],
        "y = 2x + 3": ["2x+3"],
        "58,500": ["x = 58,500"],
        "2x + y = 3": ["4x + 2y = 6"],
        "y''+y=0": ["y+y''=0"],
    },
    "thousands": {
        r"\frac{2469}{20,000}": [r"\frac{2469}{20000}", "0.12345", "2469/20,000", r"\frac{2,469}{20,000}"],
        "1/2,000": ["1/2000", r"\frac{1}{2000}", "0.0005", r"\frac{1}{2,000}", "1/2{,}000"],
        "32": [r"\sqrt{1,024}"],
        "1234": [r"1{,}234"],
        "12345": [r"12\,345"],
        "-12345.5": [r"-12,\! 345.5"],
        "1234567": ["1,234,567"],
        "10,080": [r"10{,}080"],
        r"1234 \times 5678": [r"1,\!234 \times 5{,}678"],
    },
    "text": {
        "204": [
            *(r"\text{204}", r"\mathrm{204}", r"\mathbf{204}", r"\bf{204}", r"{\bf 204}", r"\text{$204$}"),
            r"\text{204 cm}",
        ],
        r"-\frac{1}{2}": [r"\text{-1/2}", r"\text{-0.5}", r"\mathbf{-\frac{1}{2}}"],
        r"\text{B, E, G}": ["B, E, G", r"\text{G, E, B}", r"\text{B}, \text{E}, \text{G}", r"\text{B, E, and G}"],
        r"\text{June 20}": ["June 20", r"\text{June }20", r"\text{June 20.}", "June 20th"],
        r"\text{1:03 PM}": ["1:03 PM", r"1:03 \text{ p.m.}", r"1\!:\!03 \text{ PM}", r"1{:}03\text{ PM}", "1:03pm"],
        r"\text{Softball, Kickball, Picnic}": ["Softball, Kickball, Picnic"],
        r"\text{A5}_{11}": ["A5_{11}"],
        r"\text{(C)}": ["C"],
        "(B)": [r"\text{(B)}"],
        r"\text{east}": ["East"],
        "even": [r"\text{even}"],
        r"\text{Evelyn}": ["Evelyn"],
        r"\text{Tom-Tom}": ["tomtom"],
        r"\text{Ada Lovelace}": [r"\text{AdaLovelace}"],
    },
    "braces, names and commas": {
        r"\{1,2\}": ["{1,2}", "{2, 1}"],
        "{1,2}": [r"\{2, 1\}"],
        r"I_{\max}=X": ["I_{max}=X", r"I_{\text{max}}=X", r"I_\max=X", "X"],
        r"k_{\text{B}}T": ["k_B T", r"k_\text{B} T", "T k_B", r"k_{\rm B}T"],
        "5": ["5,", "5;", "{5}"],
        "5,": ["5"],
        "(1,2)": ["(1,2),"],
        "I R": ["R I"],
    },
    "degrees inside functions": {
        r"\frac{1}{2}": [r"\sin 30^\circ", r"\sin(30^\circ)", r"\cos 60^{\circ}", r"\sin{30^\circ}", "\\sin 30°"],
        r"\tan 15^\circ": [r"2-\sqrt{3}", r"\tan(15^\circ)", r"\tan\frac{\pi}{12}"],
        r"2\sin 40^\circ": [r"2 \cos 50^\circ", r"2\sin\frac{2\pi}{9}"],
    },
    "Chinese": {
        "5": [
            *(
                "5米",
                "5 厘米",
                r"5\text{米}",
                r"\text{5 米}",
                "5平方米",
                "5元",
                "5 克/升",
                "5 度",
                "5。",
                "５",
                "5 cm²",
            ),
            "5千米",
        ],
        "5米": ["5", r"5 \text{ 米}", "5m"],
        r"2\sqrt{3}": ["2\\sqrt{3}厘米"],
        "50000": ["5万", "5 万元", r"5\text{万}"],
        "10": ["10％"],
        "2,3": ["2，3", "2、3", "2和3", "2或3"],
        "(1,2)": ["（1，2）"],
    },
    "by cases": {
        PIECEWISE: [
            r"\begin{cases}-x, & x<0\\ x, & x\geq 0\end{cases}",
            r"\begin{cases}x & \text{if } x\ge 0\\ -x & \text{if } x<0\end{cases}",
            r"\begin{cases}x, & 0\le x,\\ -x, & x<0.\end{cases}",
        ],
        r"f(x)=\begin{cases}x^2 & \text{if } x>1\\ 0 & \text{otherwise}\end{cases}": [
            r"\begin{cases}x^2, & x>1\\ 0, & \text{otherwise}\end{cases}"
        ],
    },
    "integers in exponents": {
        r"\frac{2^n+(-1)^n}{3}": [r"\frac{(-1)^n+2^n}{3}"],
        r"\frac{(-1)^{n+1}}{n}": [r"-\frac{(-1)^n}{n}", r"\frac{(-1)^{n-1}}{n}"],
        r"4\cdot(-3)^{n-1}": ["4(-3)^{n-1}"],
        r"1+(-\frac12)^n": [r"(-\frac12)^n+1"],
    },
    "steps": {
        r"\lfloor \frac{n}{9}\rfloor": [
            r"\lfloor n/9 \rfloor",
            r"\lceil n/9 + 1 \rceil - 1 - \lceil n/9 \rceil + \lfloor n/9\rfloor",
        ],
        r"\gcd(n, 16)": [r"\gcd(16, n)"],
        r"\max\{n, 16\}": [r"\max(16, n)", r"\max{16, n}"],
        r"\log_3 9": ["2", r"\lceil \log_3 9 \rceil"],
        "|x-50|": ["|50-x|"],
        r"\ln(-x)": [r"\ln|x|"],  # wherever the gold is defined
    },
    "minutes and seconds": {
        r"12 \mathrm{~min}": ["12", r"12\,\text{min}", r"12 \text{ minutes}"],
        r"5.13\,\mathrm{ft}/\mathrm{sec}": ["5.13", r"5.13\text{ ft/sec}"],
        r"\mathrm{min}(x, y)": [r"\min(y, x)"],
    },
    "numbers in words": {
        "21": [r"\text{twenty-one}", r"\text{Twenty one}"],
        "100": [r"\text{one hundred}", r"\text{hundred}"],
        r"\frac{2}{3}": [r"\text{two thirds}"],
        r"\frac{1}{2}": [r"\text{one half}"],
    },
    "brackets in products": {
        "6": ["2(3)", "(2)(3)"],
        "-4": [r"\left(-1\right) 4"],
        "1": [r"(2)\frac12"],
        r"\frac{5}{2}": [r"2\frac12", r"2\frac12\text{ hours}"],
    },
    "about": {
        "24.33": [r"\approx 24.33", "x ≈ 24.33"],
        r"\sqrt{2}": [r"\sqrt2 \approx 1.414"],
    },
    "unions with an empty part": {
        "(0,3)": [r"(0,3)\cup\emptyset", r"\varnothing\cup(0,3)"],
        r"(-\infty,-1]\cup[4,\infty)": [r"(-\infty,-1]\cup\emptyset\cup[4,+\infty)"],
        r"\emptyset": [r"\emptyset\cup\emptyset"],
    },
    "complements": {
        r"(-\infty,2)\cup(2,\infty)": [r"\mathbb{R}\setminus\{2\}", r"x\ne2"],
        r"(-\infty,3]": [r"\mathbb{R}\setminus(3,\infty)"],
    },
    "residues": {r"x \equiv 3 \pmod{7}": [r"x \equiv -4 \pmod{7}", r"x \equiv 10 \pmod 7"]},
    "words that say nothing": {
        r"\text{III}": [r"\text{Quadrant III}"],
        r"2, 5, 8, \ldots": ["2, 5, 8, ..."],
        "3": ["=3", r"3\quad\blacksquare"],
        "12 cm": [r"12\,\rm{cm}", "12 (cm)"],
        "9 (apples)": ["9", "9 apples"],
        "1234567": ["1'234'567"],
        r"\frac14": [r"\Pr(A)=\frac14", r"\mathbb P(A)=\frac14"],
        "5": [r"\mathbb{E}[X]=5"],
        r"f(x)=2x \text{ for all } x\in\mathbb{R}": [r"f(x)=2x\quad\forall x\in\mathbb{R}", "f(x)=2x"],
        r"O(n\log n)": [r"\mathcal{O}(n \log n)"],
    },
    "marks around an answer": {
        "5": [r"\therefore x = 5", r"\implies 5", r"5^{\text{th}}", r"\begin{aligned}5\end{aligned}"],
        "f(x)=0": [r"f(x)=0 \text{ for all real } x", r"f(x) = 0 \quad \forall x"],
        "B": [r"\text{B. } 12", "B) 12"],
        r"\text{A and C}": [r"\text{A, C}", r"\text{C and A}"],
        "25": ["25°C", r"25^\circ \text{ Celsius}", r"25\,\Omega", "25 µm"],
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": ["[[1,2],[3,4]]"],
        r"\ln(1+\sqrt{2})": [r"\sinh^{-1}(1)", r"\operatorname{arsinh}(1)"],
    },
    "units of letters and signs": {
        "60": [
            r"60\,\mathrm{km\,h^{-1}}",
            r"60\ \frac{\text{km}}{\text{h}}",
            r"60\,\mathrm{km/h}",
            r"60\ \mathrm{m\cdot s^{-2}}",
        ],
        "10": [
            *(r"10\,\mathrm{k\Omega}", r"10\,\mathrm{k}\Omega", "10 kΩ", r"10\,\mu\text{m}", "10 μm", "10 μF"),
            *(r"10\,\mathrm{\mu F}", r"10\ \mathrm{M\Omega}"),
        ],
        "8.31": [
            r"8.31\text{ J/(mol K)}",
            r"8.31\ \frac{\text{J}}{\text{mol K}}",
            r"8.31\,\mathrm{J\,mol^{-1}\,K^{-1}}",
        ],
        "25": [r"25\,{}^\circ\mathrm{C}", r"25\text{ °C}", r"25~^\circ C"],
        r"10\mu m": [r"m\mu 10"],
        "12": ["12 min", "12 sec"],
    },
    "two units in a row": {
        "2 hours 30 minutes": ["2 hr 30 min", r"2 \text{ hours and } 30 \text{ minutes}", "150 minutes"],
        "63": ["5 ft 3 in", "5 feet 3 inches"],
        "150": [r"2\text{ h } 30\text{ min}", "2 h 30 min"],
        "330": [r"5\text{ min } 30\text{ s}"],
        "93603": ["1 day 2 hours 3 seconds"],
        "3, 4": ["3 apples and 4 pears"],
    },
    "what is compared as it stands": {
        r"n \text{ is even}": [r"\text{n is even}", "n is even"],
        r"1+2+\cdots+n": [r"1 + 2 + \ldots + n"],
        r"\mathbf{A}\mathbf{B}": [r"\mathbf A \mathbf B", r"\mathbf{AB}"],
        "4, 2": ["[4, 2]"],
    },
    "columns, rows and transposes": {
        "(1,-2,3)": [r"\begin{pmatrix}1\\-2\\3\end{pmatrix}", "(1,-2,3)^T", r"\begin{pmatrix}1&-2&3\end{pmatrix}^{T}"],
        r"\begin{pmatrix}1\\-2\\3\end{pmatrix}": ["(1,-2,3)", r"[1,-2,3]^\top", r"\mathbf{i}-2\mathbf{j}+3\mathbf{k}"],
        r"\mathbf{i}-2\mathbf{j}+3\mathbf{k}": ["(1,-2,3)", r"\begin{pmatrix}1\\-2\\3\end{pmatrix}"],
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": [
            *(r"\begin{pmatrix}1&3\\2&4\end{pmatrix}^T", "Matrix([[1, 2], [3, 4]])", "np.array([[1, 2], [3, 4]])"),
        ],
    },
    "vectors in bold capitals": {
        r"\mathbf r\times\mathbf F": [r"-\mathbf F\times\mathbf r", r"\vec{r}\times\vec{F}"],
        r"\mathbf{u}_1+\mathbf{v}": [r"\mathbf{v}+\mathbf{u}_1"],
        "B": [r"\mathbf{B}"],
    },
    "names with an index": {"2, 3": ["x_1=3, x_2=2"], "2, 2": ["x_1=2, x_2=2"]},
    "functions that are units": {
        r"\tan x\sec^2 x": ["tan x sec^2 x", r"\sec^2(x)\tan x"],
        r"2\sec^2 x": ["2 sec^2(x)"],
    },
    "double factorials": {"105": ["7!!"], "48": ["6!!"]},
    "expressions that are seldom real": {
        r"\sqrt{a^2-b^2-c^2}": [r"\sqrt{a^2-c^2-b^2}"],
        r"\sqrt{x-100}": [r"\sqrt{-100+x}"],
        r"\ln(\ln(\ln x))": [r"\ln\ln(\ln x)"],
    },
}

# gold: wrong answers
DIFFERENT: dict[str, dict[str, list[str]]] = {
    "answers that would be right for many golds": {
        "(3,1)": ["[1,0]", "5<x<1", "(5,1]", "|x|<0", r"[1,2]\cap[3,4]", r"\{1\}\setminus\{1\}"],
        "(2,2)": ["[1,0]", "(0,0]", "3>x>5"],
        "(3,1),(5,0)": ["[1,0],[1,0]"],
        "[4,2]": ["[2,0]", "(4,2)"],
        "(0,1)": [r"(0,1)\cup[7,3]"],
        "5:6": ["0:0", "00:00"],
        "1:2:3": ["0:0:0"],
    },
    "steps": {
        r"\lfloor n/9\rfloor": [
            r"\lfloor n/10\rfloor",
            r"\lceil n/9\rceil-1",
            r"\lfloor (n+1)/9\rfloor",
            r"\lfloor n/8\rfloor",
        ],
        r"\lceil \log_3 n\rceil": [r"\lfloor\log_3 n\rfloor+1"],
        r"\lfloor x\rfloor": [r"\lfloor x+0.01\rfloor"],
        r"\binom{n}{16}": ["0"],
        r"n \bmod 20": ["n"],
        "n": [r"n\bmod 100", r"\min(n,100)", r"\gcd(n,720720)"],
        r"\gcd(n,11)": ["1", r"\gcd(n,13)"],
        r"\gcd(n,16)": [r"\gcd(n,32)", r"\gcd(n,8)"],
        r"\max(n,0)": [r"\max(n,-100)", "n"],
        "50-x": ["|x-50|"],
        "x": [r"\max(x,-30.5)", r"\max(x,e^{20})"],
        r"\ln|x|": [r"\ln(-x)", r"\ln x"],
    },
    "brackets in products": {r"\frac{5}{2}": [r"(2)\frac12"], r"-\frac{1}{4}": [r"(-1)\frac34"], "23": ["2(3)"]},
    "a base that the gold has not": {"42": ["42_8", "42_{16}"], "1010": ["1010_2"]},
    "names that must agree": {
        "x>2": ["y>2"],
        r"a\ge-2": [r"w\in[-2,\infty)"],
        "x=2, x=3": ["y=2, y=3", r"n=2 \text{ or } n=3"],
        "x=1,2": ["y=1,2"],
    },
    "ends of complements": {
        r"\mathbb{R}\setminus\{1\}": [r"(-\infty,1]\cup(1,\infty)", "x>1", r"\mathbb{R}"],
        r"x\ne1": [r"x \le 1 \text{ or } x > 1"],
        "|x|>2": [r"|x|\ge2", r"(-\infty,-2]\cup(2,\infty)"],
    },
    "series cut off behind their digits": {
        "e": [r"\sum_{k=0}^{30}\frac1{k!}"],
        r"\ln 2": [r"\sum_{k=1}^{70}\frac1{k2^k}"],
        "1": [r"\zeta(100)"],
    },
    "sums of terms with an index": {r"2^m a_i": [r"\sum_{i=0}^{m} \binom{m}{i} a_i"]},
    "residues": {r"x \equiv 3 \pmod{7}": [r"x \equiv 4 \pmod{7}", r"x \equiv 3 \pmod{14}", r"y \equiv 3 \pmod 7"]},
    "units of letters and signs": {"10": [r"12\,\mathrm{k\Omega}", r"10\mu"], "8.31": [r"8.31\text{ J/(bla K)}"]},
    "two units in a row": {
        "2 hours 30 minutes": ["2 hours 31 minutes", "2.5", "2", "2, 30"],
        "2": ["2 hours 30 minutes", "2 hours 30 apples"],
        "30": ["2 hours 30 minutes", "2 h 30 min"],
        "60h": ["2 h 30 min"],
    },
    "what is compared as it stands": {
        "2e - 3": ["2e-3", "0.002"],
        "0.002": ["2e - 3", "2e -3"],
        r"n \text{ is even}": [r"n \text{ is odd}", r"m \text{ is even}", "n"],
        "n": [r"n \text{ is even}"],
        r"1+2+\cdots+n": ["1+2+n", r"1+3+\cdots+n", r"1+2+\cdots", r"\frac{n(n+1)}{2}"],
        r"\mathbf{A}\mathbf{B}": [r"\mathbf{B}\mathbf{A}", r"\mathbf{BA}", r"\mathbf{A}\cdot\mathbf{B}"],
        r"\mathbf{A}^{-1}\mathbf{B}": [r"\mathbf{B}\mathbf{A}^{-1}", r"\mathbf{A}\mathbf{B}"],
        "4, 2": ["[2, 4]", "(4, 2]", "[4, 2, 1]"],
        "[4, 2]": ["4, 2", "[2, 4]"],
    },
    "columns, rows and transposes": {
        "(1,-2,3)": [r"\begin{pmatrix}1&-2&3\end{pmatrix}"],
        r"\begin{pmatrix}1\\2\\3\end{pmatrix}": [
            *(r"\begin{pmatrix}1&2&3\end{pmatrix}", r"\begin{pmatrix}1\\2\\3\end{pmatrix}^T", "(1,3,2)"),
        ],
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}": [r"\begin{pmatrix}1&2\\3&4\end{pmatrix}^T", "[[1,3],[2,4]]"],
    },
    "vectors in bold capitals": {
        r"\mathbf r\times\mathbf F": [
            r"\mathbf F\times\mathbf r",
            r"\mathbf r\cdot\mathbf F",
            r"\mathbf F\cdot\mathbf r",
        ],
    },
    "names with an index": {
        "2, 3": ["x_1=2, x_2=2", "x_1=2, x_2=4", "a=3, b=2"],
        "(2,3)": ["x_1=3, x_2=2"],
        "x_1=3, x_2=2": ["x_1=2, x_2=3"],
    },
    "double factorials": {"105": ["7!"], "720": ["6!!"], "5040": ["7!!"]},
    "expressions that are seldom real": {
        r"\sqrt{a^2-b^2-c^2}": [r"\sqrt{a^2-c^2-2b^2}", r"\sqrt{a^2-b^2}"],
        r"\sqrt{x-100}": [r"\sqrt{x-101}", r"\sqrt{x-100.00001}"],
    },
    "letters": {
        r"\text{A and C}": [r"\text{the and C}"],
        "5": [r"\overline{5}"],
        "abc": [r"\text{ABC}"],
        r"\text{only if}": [r"\text{if}"],
        "42": [r"\approx 42"],
    },
    "numbers": {
        "7": ["-7", r"\frac{1}{0}"],
        "-7": ["7"],
        "70": ["7"],
        "5": ["25", r"\frac{1}{0}", "5 x", "5x"],
        "10000": ["10001"],
        r"\frac{3}{4}": [r"\frac{4}{3}"],
        "9007199254740993": ["9007199254740992"],  # equal as floats
        "9007199254740992": ["9007199254740993"],
        "2": [r"\varkappa_1^2", r"\varkappa = 7, 2"],
        r"2\pi R": ["2"],
        r"\sqrt{2}": ["2"],
    },
    "small numbers": {
        r"4 \times 10^{-24}": [r"7 \times 10^{-22}", "0.0"],
        "0.0": [r"4 \times 10^{-24}"],
        "0.003": ["0.0030004"],
        "6e-5": [r"6 \times 10^{-4}"],
        "4.6e-24": ["7e-22"],
        "7e-22": ["4.6e-24"],
        "(4.6e-24, 1)": ["(7e-22, 1)"],
        r"\{4.6e-24, 1\}": [r"\{7e-22, 1\}"],
        r"(\pi \times 10^{-9}, 1)": [r"(3\pi \times 10^{-9}, 1)"],
        "x + 10^{-4}": ["x"],
    },
    "units": {
        "50": ["0.5", "5000"],
        r"50\%": ["0.5"],  # a percent sign never scales
        "0.5": [r"50\%"],
        "5": [r"5 \text{ million}"],
        r"\frac{37}{4} m": [r"\frac{37}{4}"],
        r"\frac{3}{2} m": [r"\frac{3}{2}"],
        "2k": ["2"],
        "4": ["4 squared", r"4 \text{ more than } 3"],
    },
    "rounded decimals": {
        # A tolerance is that of the whole answer, not of a factor.
        r"\frac{\pi}{3}": [r"0.333333\pi"],
        r"\frac{1}{3}": ["0.33333", "0.333"],
        "0.33333": [r"\frac{1}{3}"],
        r"\frac{2}{3}": ["0.666666"],
        "0.666666": [r"\frac{2}{3}"],  # cut off, not rounded
        r"\frac{1}{300000}": ["0.000003"],  # one digit, zeros in front do not count
        "0.000003": [r"\frac{1}{300000}"],
        "58500": ["58500.1"],
        "58500.1": ["58500"],
        "5": ["5.0000001"],
        "5.0000001": ["5"],
        r"\sqrt{2}": ["1.4142", "1.414213", r"\sqrt{2}+10^{-7}"],
    },
    "numerals and times": {"204_5": ["204_6"], "3_4": ["3_5"], "52_8": ["42"], r"05\!:\!00": ["3"]},
    "points, sets and lists": {
        "(3,4)": [r"\{3,4\}", "4, 3", "(4,3)", "[3,4]"],
        "2, 3, 3": ["2, 2, 3", "x_1=3, x_2=2, x_3=2"],
        "(3,4]": ["[3,4)", "(3,4)", "3, 4"],
        "4": ["1, 2, 3, 4"],
        "3": ["7 apples and 3 pears"],
        "1, 2": ["1, 2, 3"],
        r"\{1, 2, 3\}": [r"\{1, 2\}"],
        r"\{x, y\}": [r"\{y, 2x\}"],
        r"(\sqrt{8}, 1)": ["(x, 2)"],
    },
    "plus and minus": {"2": [r"\pm 2"], r"\sqrt{2}": [r"-\sqrt{2}"]},
    "infinity": {r"\infty": ["5"], r"-\infty": ["5"], r"\frac{1}{0}": ["5"], r"2\sqrt{x\infty}": [r"2\sqrt{\infty}"]},
    "matrices": {
        r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}": [
            r"\begin{pmatrix} 1 & 2 \end{pmatrix}",
            r"\begin{pmatrix} 2 \\ 1 \end{pmatrix}",
        ]
    },
    "expressions": {
        "p - q": ["q - p"],
        "x": ["|x|", "x+1"],
        "f(t)": ["f(2t)", "g(t)"],
        r"1-\frac{1}{e}": [r"1+\frac{1}{\mathrm{e}}"],
        r"\gamma^2 - 1": [r"\gamma^2 - 2"],
        r"\pi R^2": [r"\pi r^2"],
        "x^T": ["x"],
        r"A e^{-k t} \sin \left(\omega t\right)": [r"A e^{-k t} \sin \left(2\omega t\right)"],
    },
    "complex constants": {
        "6-5i": ["6+5i", "-6+5i", "5-6i", "6-5k", "6-5", "6", "11"],
        "6 - 5i": ["6 + 5i"],
        "292i": ["292", "-292i", "293i"],
        "1+2i": ["1-2i", "2+i", "3", "1+2x"],
        "292": ["292i"],
        "2i+3j": ["3i+2j", "-2i+3j"],
        r"\frac{4 A}{3+3 i} e^{i t}": [r"\frac{4A}{3-3i}e^{it}"],
        "IR": [r"\sqrt{-1}R", "iR"],
    },
    "slow constants": {
        NESTED_ROOTS: [r"\frac{\sqrt{\sqrt{194}+\sqrt{11}}}{2\sqrt{33}+16}"],
        LOGARITHMS: [r"\frac{\log 2}{\log 3-\log 2}", r"\frac{\log 3}{\log 2-\log 3}"],
        "10^{400}": ["10^{400}+1"],
        "0": ["10^{-50}", r"\frac{1}{2^{1000}}"],
    },
    "equals signs": {
        "0": ["x+y+z=0", "2x = 0", "x^2=0", "f(x) + 1 = 0", r"\sin x = 0", "0=x+y"],
        "13": ["n+1=13", "13=n+1", "n^2 = 13", "|x|=13", r"\sqrt{x}=13", "x/2=13"],
        "5": [
            *("2x=5", "a+b=5", "xy=5", "n(n+1)=5", "-x=5", r"\frac{x}{2}=5", "x>5", r"x \neq 5", "x=4=5", "5=3"),
            "x=5, y=6",
        ],
        "-50": ["4x-5y=-50", "-50=4x-5y"],
        "2,3": ["x=2, 2x=3", "x=2", r"x=2 \text{ or } x=4"],
        "2x=5": ["5"],
        "x+y+z=0": ["0", "x+y-z=0"],
        "x=5": ["y=5", "2x=5"],
        "x=5, y=3": ["x=3, y=5"],
        "2x + y = 3": ["4x + 2y = 7"],
        "y''+y=0": ["y'+y=0"],
        r"\frac{dN}{dt} = 10 N": [r"\frac{dN}{dt} = 11 N"],
        GROWTH: [GROWTH.replace("10^{5}", "10^{6}")],
    },
    "thousands": {
        r"\frac{2469}{20,000}": [r"\frac{2469}{20}", r"\frac{2469}{2,000}"],
        "1/2,000": ["1/2", "(1/2, 0)", "2000"],
        "58,500": ["(58,500)", r"\{58,500\}"],
    },
    "text": {
        "204": [r"\text{205}", r"\text{2040}", r"\text{-204}", r"\text{204 or 205}"],
        "12": [r"\text{12 hours 30 minutes}", r"12\text{ hours 30 minutes}"],
        r"\text{B, E, G}": [r"\text{B, E}", r"\text{B, E, F}", "B,E,G,H"],
        r"\text{June 20}": [r"\text{June 21}", "20", r"\text{July 20}", r"\text{June 200}"],
        r"\text{1:03 PM}": [r"\text{1:03 AM}", r"\text{1:04 PM}", r"\frac{1}{3}"],
        r"5 \text{ p.m.}": ["5 a.m."],
        r"\text{Softball, Kickball, Picnic}": ["Kickball, Softball, Picnic"],
        r"\text{(B)}": [r"\text{(C)}"],
        r"\text{even}": ["odd"],
        r"\text{east}": ["west"],
    },
    "braces, names and commas": {"{1,2}": ["(1,2)", "{1,3}", "12"], r"k_{\text{B}}T": ["k_C T", "k T", "k_b T"]},
    "degrees inside functions": {
        r"\frac{1}{2}": [r"\sin 30", r"\sin 60^\circ"],
        r"2\sin 40^\circ": [r"2\sin 40", r"2\sin 41^\circ"],
    },
    "Chinese": {"5": ["50米", "5万", "6米", "5个半", "5分之一", "5或6", "5千"]},
    "by cases": {
        PIECEWISE: [
            "x",
            "x, -x",
            r"x, x\ge 0, -x, x<0",
            r"\begin{cases}x \\ -x \end{cases}",
            r"\begin{cases}x & x\ge 0\end{cases}",
            r"\begin{cases}x & x> 0\\ -x & x<0\end{cases}",
            r"\begin{cases}-x & x\ge 0\\ x & x<0\end{cases}",
            r"\begin{cases}x & y\ge 0\\ -x & y<0\end{cases}",
            r"\begin{cases}x & x\ge 0\\ -x & x<0\\ 1 & x=7\end{cases}",
        ]
    },
}


def pairs(forms: dict[str, dict[str, list[str]]]) -> list[Any]:
    return [
        pytest.param(gold, answer, id=f"{form}: {gold[:60]} | {answer[:60]}")
        for form, golds in forms.items()
        for gold, answers in golds.items()
        for answer in answers
    ]


@pytest.mark.parametrize(("gold", "answer"), pairs(SAME))
def test_a_right_answer_is_accepted_in_every_form(gold: str, answer: str):
    assert equal(gold, answer), explain(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), pairs(DIFFERENT))
def test_a_wrong_answer_of_the_same_form_is_refused(gold: str, answer: str):
    assert not equal(gold, answer), explain(gold, answer)
    assert explain(gold, answer).status in ("incorrect", "unparsed")


@pytest.mark.parametrize(
    "gold",
    ["", "  ", r"\boxed{}", r"\begin{cases}n & n \text{ odd}\end{cases}", pytest.param("1" * 5000, id="5000 digits")],
)
def test_a_gold_that_is_not_read_is_an_error(gold: str):
    assert explain(gold, "5").status == "error"


@given(st.fractions(max_denominator=10**6))
def test_every_fraction_is_equal_to_itself_and_differs_from_its_neighbour(value: Fraction):
    gold = rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    assert equal(gold, f"{value.numerator}/{value.denominator}")
    assert not equal(gold, f"{value.numerator + 1}/{value.denominator}")


MARKS = st.text(alphabet=r"()[]{},\pm=_ 12xyE.%/", max_size=60)


@given(MARKS, MARKS)
def test_no_text_makes_it_raise_and_every_answer_equals_itself(gold: str, answer: str):
    assert equal(gold, gold) == bool(gold.strip())
    explain(gold, answer)


@given(
    st.text(alphabet=r" \{}()[]$^_,.!0123456789abexfrctimsqlghtupnd&;:|'+-*/=<>%", max_size=60), st.text(max_size=60)
)
def test_no_text_in_any_alphabet_makes_it_raise(notation: str, text: str):
    for answer in (notation, text):
        explain("2x", answer)
        explain(answer, "2x")


REWRITES: dict[str, dict[str, list[str]]] = json.loads((Path(__file__).parent / "rewrites.json").read_text())
"""Gold answer → what equals it and what differs from it, made by rule without a look at any verifier."""


def status(gold: str, completion: str) -> str:
    answer = extract(completion, gold)
    return explain(gold, answer).status if answer else "unparsed"


@pytest.mark.parametrize("gold", REWRITES)
def test_what_is_made_by_rule_is_accepted_if_it_is_equal_and_else_refused(gold: str):
    for form in (rf"Thus \boxed{{{gold}}}.", f"Thus.\nAnswer: {gold}", f"Thus.\nAnswer: ${gold}$"):
        assert status(gold, form) == "correct"
    found = {
        kind: {text: status(gold, rf"Thus \boxed{{{text}}}.") for text in texts}
        for kind, texts in REWRITES[gold].items()
    }
    assert [text for text, verdict in found["equal"].items() if verdict != "correct"] == []
    assert [text for text, verdict in found["other"].items() if verdict not in ("incorrect", "unparsed")] == []


@pytest.mark.parametrize("answer", [r"\max(x,-e^{200})", r"\min(x,10^{40})", "+".join(f"|x-{k}|" for k in range(90))])
def test_steps_beyond_all_points_are_not_computed_and_so_not_equal(answer):
    assert explain("x" if "{" in answer else answer.replace("89", "91"), answer).status in ("timeout", "incorrect")
