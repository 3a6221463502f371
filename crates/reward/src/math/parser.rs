//! Parser from tokens to expressions.
//!
//! Precedence is the usual one; an implicit product binds like an explicit one, so `1/2x` is `(1/2)·x`. A minus sign
//! binds less tightly than a power: `-2^2` is −4. An integer before a proper fraction is a mixed number: `1\frac{1}{2}`
//! and `1 1/2` are 3/2.

use super::expression::Expression;
use super::lexer::{Letters, MAX_DEPTH};
use super::rational::Rational;
use super::token::{Function, Spaced, Token};
use super::unit::{self, Unit};

pub(super) struct Parser<'a> {
    tokens: &'a [Spaced],
    at: usize,
    depth: usize,
    letters: &'a Letters,
    /// Reads `±` as plus.
    plus: bool,
    in_function: bool,
    /// Reads the next bar as the end of an absolute value.
    in_bars: bool,
    /// The currency sign, if there was one.
    pub(super) currency: Option<Unit>,
}

type Parsed = Option<Expression>;

impl<'a> Parser<'a> {
    pub(super) fn new(tokens: &'a [Spaced], letters: &'a Letters, plus: bool) -> Self {
        Self { tokens, at: 0, depth: 0, letters, plus, in_function: false, in_bars: false, currency: None }
    }

    /// The remaining tokens.
    pub(super) fn rest(&self) -> &'a [Spaced] {
        &self.tokens[self.at..]
    }

    pub(super) fn skip(&mut self, count: usize) {
        self.at = (self.at + count).min(self.tokens.len());
    }

    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at).map(|t| &t.token)
    }

    fn ahead(&self, count: usize) -> Option<&'a Token> {
        self.tokens.get(self.at + count).map(|t| &t.token)
    }

    fn take(&mut self, token: &Token) -> Option<()> {
        (self.peek() == Some(token)).then(|| self.at += 1)
    }

    fn deeper(&mut self, parse: impl FnOnce(&mut Self) -> Parsed) -> Parsed {
        self.depth += 1;
        let parsed = if self.depth > MAX_DEPTH * 2 { None } else { parse(self) };
        self.depth -= 1;
        parsed
    }

    /// A sum.
    pub(super) fn expression(&mut self) -> Parsed {
        self.deeper(|parser| {
            let mut left = parser.product()?;
            loop {
                let minus = match parser.peek() {
                    Some(Token::Plus) => false,
                    Some(Token::Minus) => true,
                    Some(Token::PlusMinus) => !parser.plus,
                    Some(Token::MinusPlus) => parser.plus,
                    _ => return Some(left),
                };
                parser.at += 1;
                let right = Box::new(parser.product()?);
                left = if minus {
                    Expression::Subtract(Box::new(left), right)
                } else {
                    Expression::Add(Box::new(left), right)
                };
            }
        })
    }

    fn product(&mut self) -> Parsed {
        let mut left = self.factor()?;
        loop {
            let (divide, sign) = match self.peek() {
                Some(Token::Times) => (false, true),
                Some(Token::Divide) if !self.is_unit_here() => (true, true),
                _ if self.begins_factor() => (false, false),
                _ => return Some(left),
            };
            if sign {
                self.at += 1;
            }
            let right = Box::new(if sign { self.factor()? } else { self.power()? });
            left = if divide {
                Expression::Divide(Box::new(left), right)
            } else {
                Expression::Multiply(Box::new(left), right)
            };
        }
    }

    /// True if a factor follows without a multiplication sign.
    fn begins_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Variable(_)) => !self.is_unit_here(),
            Some(
                Token::Pi
                | Token::Euler
                | Token::Group
                | Token::Fraction
                | Token::Root
                | Token::Function(_)
                | Token::Binomial
                | Token::Floor
                | Token::Ceiling
                | Token::Open('('),
            ) => true,
            Some(Token::Bar) => !self.in_bars,
            // A power after a variable or a closed group: `n 2^{n}`, `2^{a} 3^{b}`.
            Some(Token::Number(..)) => {
                let before = self.at.checked_sub(1).map(|at| &self.tokens[at].token);
                let is_closed =
                    matches!(before, Some(Token::Variable(_) | Token::Close(')') | Token::GroupEnd));
                is_closed && self.ahead(1) == Some(&Token::Power)
            }
            _ => false,
        }
    }

    /// True if all remaining tokens are a unit: `5 m/s`, but not `5 m + 1`, and not `5m` if m is a variable.
    fn is_unit_here(&self) -> bool {
        let first = self.tokens[self.at..].iter().find(|t| t.token != Token::Divide);
        let plausible = match first.map(|t| (&t.token, t.space)) {
            Some((Token::Variable(letter), space)) => {
                let free = match self.letters {
                    Letters::Guess => space,
                    Letters::Known(variables) => !letter.chars().any(|c| variables.contains(&c)),
                };
                free && unit::is_letter(letter)
            }
            Some((Token::Words(_), _)) => true,
            _ => false,
        };
        plausible && unit::tail(self.rest()).is_some()
    }

    fn factor(&mut self) -> Parsed {
        let minus = match self.peek() {
            Some(Token::Plus) => false,
            Some(Token::Minus) => true,
            Some(Token::PlusMinus) => !self.plus,
            Some(Token::MinusPlus) => self.plus,
            _ => return self.power(),
        };
        self.at += 1;
        let inner = self.deeper(Self::factor)?;
        Some(if minus { Expression::Negate(Box::new(inner)) } else { inner })
    }

    fn power(&mut self) -> Parsed {
        let base = self.postfix()?;
        if self.peek() != Some(&Token::Power) {
            return Some(base);
        }
        self.at += 1;
        let exponent = self.deeper(Self::factor)?;
        Some(Expression::Power(Box::new(base), Box::new(exponent)))
    }

    fn postfix(&mut self) -> Parsed {
        let mut inner = self.deeper(Self::primary)?;
        loop {
            match self.peek() {
                Some(Token::Factorial) => inner = Expression::Factorial(Box::new(inner)),
                Some(Token::Degree) if self.in_function => {
                    let half_turn =
                        Expression::Divide(Box::new(Expression::Pi), Box::new(Expression::integer(180)));
                    inner = Expression::Multiply(Box::new(inner), Box::new(half_turn));
                }
                _ => return Some(inner),
            }
            self.at += 1;
        }
    }

    fn primary(&mut self) -> Parsed {
        let token = self.peek()?;
        self.at += 1;
        match token {
            Token::Number(value, whole) => self.number(value, *whole),
            Token::Variable(name) => self.variable(name),
            Token::Pi => Some(Expression::Pi),
            Token::Euler => Some(Expression::Euler),
            Token::Infinity => Some(Expression::Infinity),
            Token::Open('(') => self.closed(&Token::Close(')')),
            Token::Open('[') => self.closed(&Token::Close(']')),
            Token::Group => self.closed(&Token::GroupEnd),
            Token::Bar => {
                let outer = std::mem::replace(&mut self.in_bars, true);
                let inner = self.closed(&Token::Bar);
                self.in_bars = outer;
                inner.map(|inner| Expression::Absolute(Box::new(inner)))
            }
            Token::Floor => self.closed(&Token::FloorEnd).map(|inner| Expression::Floor(Box::new(inner))),
            Token::Ceiling => {
                self.closed(&Token::CeilingEnd).map(|inner| Expression::Ceiling(Box::new(inner)))
            }
            Token::Fraction => {
                let (top, bottom) = (self.group()?, self.group()?);
                Some(Expression::Divide(Box::new(top), Box::new(bottom)))
            }
            Token::Binomial => {
                let (top, bottom) = (self.group()?, self.group()?);
                Some(Expression::Binomial(Box::new(top), Box::new(bottom)))
            }
            Token::Root => self.root(),
            Token::Function(function) => self.function(*function),
            Token::Currency(name) if self.currency.is_none() => {
                self.currency = Some(Unit::currency(name));
                self.deeper(Self::factor)
            }
            _ => None,
        }
    }

    fn closed(&mut self, end: &Token) -> Parsed {
        let inner = self.expression()?;
        self.take(end)?;
        Some(inner)
    }

    fn group(&mut self) -> Parsed {
        self.take(&Token::Group)?;
        self.closed(&Token::GroupEnd)
    }

    /// A number with its repeating digits or fraction.
    fn number(&mut self, value: &Rational, whole: bool) -> Parsed {
        let mut value = value.clone();
        if let Some(Token::Repeating(more)) = self.peek() {
            self.at += 1;
            value = value.add(more)?;
        } else if whole && let Some((fraction, length)) = self.proper_fraction() {
            self.at += length;
            value = value.add(&fraction)?;
        }
        Some(Expression::Number(value))
    }

    /// A proper fraction of integers after an integer, and its length in tokens.
    fn proper_fraction(&self) -> Option<(Rational, usize)> {
        let whole = |ahead| match self.ahead(ahead) {
            Some(Token::Number(value, true)) => Some(value),
            _ => None,
        };
        let (top, bottom, length) = match self.peek()? {
            // \frac{a}{b}
            Token::Fraction => {
                let shape =
                    [(1, Token::Group), (3, Token::GroupEnd), (4, Token::Group), (6, Token::GroupEnd)];
                if !shape.iter().all(|(ahead, token)| self.ahead(*ahead) == Some(token)) {
                    return None;
                }
                (whole(2)?, whole(5)?, 7)
            }
            // a/b after a space
            Token::Number(..) if self.tokens[self.at].space && self.ahead(1) == Some(&Token::Divide) => {
                (whole(0)?, whole(2)?, 3)
            }
            _ => return None,
        };
        let proper = !top.is_zero() && top.compare(bottom).is_lt();
        if proper { Some((top.divide(bottom)?, length)) } else { None }
    }

    /// A letter, with its index.
    fn variable(&mut self, name: &str) -> Parsed {
        let mut name = name.to_owned();
        if self.peek() == Some(&Token::Subscript) {
            self.at += 1;
            name.push('_');
            if self.take(&Token::Group).is_some() {
                while self.take(&Token::GroupEnd).is_none() {
                    self.index(&mut name)?;
                }
            } else {
                self.index(&mut name)?;
            }
        }
        Some(Expression::Variable(name))
    }

    fn index(&mut self, name: &mut String) -> Option<()> {
        match self.peek()? {
            Token::Number(value, true) => name.push_str(&value.to_i64()?.to_string()),
            Token::Variable(letter) => name.push_str(letter),
            Token::Words(word) => name.push_str(word),
            Token::Euler => name.push('e'),
            _ => return None,
        }
        self.at += 1;
        Some(())
    }

    fn root(&mut self) -> Parsed {
        let degree = if self.take(&Token::Open('[')).is_some() {
            self.closed(&Token::Close(']'))?
        } else {
            Expression::integer(2)
        };
        let radicand = self.deeper(Self::primary)?;
        Some(Expression::Root(Box::new(degree), Box::new(radicand)))
    }

    /// A function's power, index and argument: `\sin^2 x`, `\log_2 8`, `\ln(x)`.
    fn function(&mut self, function: Function) -> Parsed {
        let mut power = None;
        let mut base = None;
        loop {
            if self.take(&Token::Power).is_some() {
                power = Some(self.deeper(Self::factor)?);
            } else if function == Function::Log && self.take(&Token::Subscript).is_some() {
                base = Some(self.deeper(Self::primary)?);
            } else {
                break;
            }
        }
        let outer = std::mem::replace(&mut self.in_function, true);
        let argument = self.argument();
        self.in_function = outer;
        let argument = Box::new(argument?);
        let value = match (function, base) {
            (Function::Log, Some(base)) => Expression::Logarithm(Box::new(base), argument),
            (Function::Log, None) => Expression::Logarithm(Box::new(Expression::integer(10)), argument),
            _ => Expression::Apply(function, argument),
        };
        Some(match power {
            // The exponent −1 denotes the inverse function.
            Some(Expression::Negate(power)) => match value {
                Expression::Apply(function, argument) if *power == Expression::integer(1) => {
                    Expression::Apply(function.inverse()?, argument)
                }
                _ => return None,
            },
            Some(power) => Expression::Power(Box::new(value), Box::new(power)),
            None => value,
        })
    }

    /// The argument of a function without parentheses ends before the next sign or function: `\sin 2x \cos x`.
    fn argument(&mut self) -> Parsed {
        if matches!(self.peek(), Some(Token::Open('(') | Token::Group)) {
            return self.postfix();
        }
        let mut argument = self.factor()?;
        while self.begins_factor() && !matches!(self.peek(), Some(Token::Function(_) | Token::Open('('))) {
            let next = self.power()?;
            argument = Expression::Multiply(Box::new(argument), Box::new(next));
        }
        Some(argument)
    }
}
