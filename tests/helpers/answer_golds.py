"""Gold answers of every kind."""

GOLDS = [
    r"\frac{3}{4}", r"\frac34", r"-\frac{7}{12}", r"3\frac{1}{2}", "0.125", "-17", "+4", "1,234,567", r"10,\!000",
    r"\sqrt{2}", r"2\sqrt{3} - 1", r"\sqrt[3]{5}", r"\frac{\sqrt{5}+1}{2}", r"\pi", r"\frac{2\pi}{3}", r"e^{-2}",
    r"6 - 5i", r"2^{10}", r"\log_2 5", r"45^\circ", r"20\%", r"\$18.50", "4.5e33", r"6.02 \times 10^{23}", "1.3e-27",
    "(3, 4)", r"\left( \frac12, -1 \right)", "(3,4]", r"(-\infty, 2) \cup (5, \infty)", r"[0, 1]",
    r"\{1, 2, 3\}", "1, -2", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} -1 \\ 0 \end{pmatrix}",
    "p - q", "x^2 + 2x + 1", r"y = 2x + 3", r"x \geq 4", r"\text{Evelyn}", r"\text{(B)}", "C", r"\emptyset",
    r"\frac{1}{1+x^{2}}", r"\frac{m g}{k} \left(1 - e^{-k t / m}\right)",
]  # fmt: skip
