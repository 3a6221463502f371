use super::rational::Rational;

/// A token of mathematical notation, from LaTeX or plain text.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    /// A number; the flag is true if it was written with digits alone.
    Number(Rational, bool),
    /// A letter, a Greek name, or a letter with its index (`x_1`).
    Variable(String),
    /// A function of one argument.
    Function(Function),
    Pi,
    Euler,
    Infinity,
    /// `\frac`, followed by two groups.
    Fraction,
    /// `\sqrt`, followed by its degree in brackets, if it has one, and a group.
    Root,
    /// `\binom`, followed by two groups.
    Binomial,
    Plus,
    Minus,
    PlusMinus,
    MinusPlus,
    Times,
    Divide,
    Power,
    Subscript,
    Factorial,
    /// Start of a LaTeX group, which is not printed.
    Group,
    GroupEnd,
    /// `(`, `[`, `{` (printed), `⟨`.
    Open(char),
    Close(char),
    /// `|`, opening or closing.
    Bar,
    Floor,
    FloorEnd,
    Ceiling,
    CeilingEnd,
    /// A comma, or `and`.
    Comma,
    Semicolon,
    /// `or`
    Or,
    Colon,
    Relation(Relation),
    /// `∈`
    In,
    Union,
    Intersection,
    /// Difference of sets.
    Without,
    /// The set of real numbers.
    Reals,
    EmptySet,
    Percent,
    Degree,
    Currency(&'static str),
    /// Words in plain text or inside `\text{…}`.
    Words(String),
    Matrix,
    MatrixEnd,
    /// `&`
    Column,
    /// `\\`
    Row,
    /// Value of repeating digits: `0.3\overline{6}` is 0.3 plus this value.
    Repeating(Rational),
}

/// The relation between two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Relation {
    Equal,
    About,
    Unequal,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

/// Functions of one argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    Sin,
    Cos,
    Tan,
    Cot,
    Sec,
    Csc,
    ArcSin,
    ArcCos,
    ArcTan,
    Sinh,
    Cosh,
    Tanh,
    Ln,
    /// Base 10, unless an index gives another base.
    Log,
    Exp,
}

impl Function {
    /// The function with a name, in LaTeX or plain text.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "sin" => Self::Sin,
            "cos" => Self::Cos,
            "tan" => Self::Tan,
            "cot" => Self::Cot,
            "sec" => Self::Sec,
            "csc" => Self::Csc,
            "arcsin" | "asin" => Self::ArcSin,
            "arccos" | "acos" => Self::ArcCos,
            "arctan" | "atan" => Self::ArcTan,
            "sinh" => Self::Sinh,
            "cosh" => Self::Cosh,
            "tanh" => Self::Tanh,
            "ln" => Self::Ln,
            "log" | "lg" => Self::Log,
            "exp" => Self::Exp,
            _ => return None,
        })
    }

    /// The function that `\sin^{-1}` denotes.
    pub(crate) fn inverse(self) -> Option<Self> {
        match self {
            Self::Sin => Some(Self::ArcSin),
            Self::Cos => Some(Self::ArcCos),
            Self::Tan => Some(Self::ArcTan),
            _ => None,
        }
    }
}

/// A token, and whether white space precedes it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spaced {
    pub(crate) token: Token,
    pub(crate) space: bool,
}
