//! From tokens to the form of an answer.

use super::answer::{Form, Quantity};
use super::evaluate::{Point, Value, evaluate};
use super::expression::Expression;
use super::lexer::Letters;
use super::parser::Parser;
use super::rational::Rational;
use super::split::{
    Bracketed, Operation, bracketed, is_separator, is_words, matching, operation, split, split_loosely,
};
use super::token::{Relation, Spaced, Token};
use super::unit::{self, Tail, Unit};
use super::work::Work;

/// Maximum nesting of brackets: the comparison of nested sets takes time exponential in the depth.
const MAX_NESTING: usize = 4;

pub(super) struct Reader<'a> {
    pub(super) letters: &'a Letters,
    /// Reads `±` as plus or as minus; without a value, what has the sign is two items.
    pub(super) plus: Option<bool>,
    pub(super) nesting: usize,
    pub(super) work: &'a Work,
}

impl Reader<'_> {
    pub(super) fn list(&self, tokens: &[Spaced]) -> Option<Form> {
        let mut items = self.items(tokens)?;
        if items.len() == 1 {
            return items.pop();
        }
        if !items.iter().all(is_inequality) {
            return Some(Form::List(items));
        }
        let or = split(tokens, |t| *t == Token::Or)?.len() > 1;
        Some(if or { Form::Union(items) } else { Form::Intersection(items) })
    }

    /// The items between commas.
    fn items(&self, tokens: &[Spaced]) -> Option<Vec<Form>> {
        let mut items = Vec::new();
        for part in split(tokens, is_separator)? {
            let ambiguous = |t: &Spaced| matches!(t.token, Token::PlusMinus | Token::MinusPlus);
            // The members of a set have their own signs.
            let set = matches!(bracketed(part), Some(Bracketed::Set(_)));
            if self.plus.is_some() || set || !part.iter().any(ambiguous) {
                items.push(self.item(part)?);
                continue;
            }
            for plus in [true, false] {
                items.push(Self { plus: Some(plus), ..*self }.item(part)?);
            }
        }
        Some(items)
    }

    fn item(&self, tokens: &[Spaced]) -> Option<Form> {
        self.work.spend(tokens.len())?;
        if self.nesting > MAX_NESTING {
            return None;
        }
        if let Some(operation) = operation(tokens) {
            return self.operation(&operation);
        }
        match tokens {
            [Spaced { token: Token::EmptySet, .. }] => return Some(Form::Set(Vec::new())),
            [Spaced { token: Token::Reals, .. }] => return Some(Form::Reals),
            _ => {}
        }
        if let Some(form) = set_in_words(tokens) {
            return Some(form);
        }
        if let Some(bracketed) = bracketed(tokens) {
            return self.inside(bracketed);
        }
        // `P(1, 2)`: a point with its name.
        if let [Spaced { token: Token::Variable(name), .. }, point @ ..] = tokens
            && name.chars().all(char::is_uppercase)
            && let Some(Bracketed::Sequence('(', ')', _)) = bracketed(point)
        {
            return self.item(point);
        }
        if let Some(form) = self.product_of_matrix(tokens) {
            return Some(form);
        }
        if tokens.iter().any(|t| matches!(t.token, Token::Relation(_))) {
            return self.relations(tokens);
        }
        let parts = split(tokens, |t| *t == Token::Colon)?;
        if parts.len() > 1 {
            // `Total: 18`
            if parts.len() == 2 && is_words(parts[0]) {
                return self.item(parts[1]);
            }
            return parts.into_iter().map(|part| self.quantity(part)).collect::<Option<_>>().map(Form::Ratio);
        }
        self.quantity(tokens).map(Form::Quantity)
    }

    /// An operation on sets.
    fn operation(&self, operation: &Operation<'_>) -> Option<Form> {
        let item = |tokens: &&[Spaced]| self.item(tokens);
        match operation {
            Operation::Union(sets) => sets.iter().map(item).collect::<Option<_>>().map(Form::Union),
            Operation::Intersection(sets) => {
                sets.iter().map(item).collect::<Option<_>>().map(Form::Intersection)
            }
            Operation::Without(all, some) => {
                Some(Form::Without(Box::new((self.item(all)?, self.item(some)?))))
            }
        }
    }

    fn inside(&self, bracketed: Bracketed<'_>) -> Option<Form> {
        let inner = Self { nesting: self.nesting + 1, ..*self };
        match bracketed {
            Bracketed::Matrix(inside) => inner.matrix(inside),
            Bracketed::Set([]) => Some(Form::Set(Vec::new())),
            Bracketed::Set(inside) => match condition(inside) {
                Some(condition) => inner.list(condition),
                None => inner.items(inside).map(Form::Set),
            },
            Bracketed::Sequence(open, close, inside) => {
                inner.items(inside).map(|items| Form::Sequence(open, close, items))
            }
            Bracketed::Parentheses(inside) => inner.item(inside),
        }
    }

    fn matrix(&self, tokens: &[Spaced]) -> Option<Form> {
        let mut rows = split_loosely(tokens, |t| *t == Token::Row);
        if rows.last().is_some_and(|row| row.is_empty()) {
            rows.pop();
        }
        let row = |row: &[Spaced]| -> Option<Vec<Form>> {
            split(row, |t| *t == Token::Column)?.into_iter().map(|cell| self.item(cell)).collect()
        };
        rows.into_iter().map(row).collect::<Option<_>>().map(Form::Matrix)
    }

    /// A matrix or vector with a factor before it or the sign of transposition after it.
    fn product_of_matrix(&self, tokens: &[Spaced]) -> Option<Form> {
        if let Some(form) = without_transposition(tokens) {
            return match self.item(form)? {
                Form::Matrix(rows) => Some(Form::Matrix(transposed(&rows)?)),
                // A row without commas between columns of its own.
                Form::Sequence('(' | '[', _, items) => {
                    Some(Form::Matrix(items.into_iter().map(|item| vec![item]).collect()))
                }
                _ => None,
            };
        }
        let start = tokens.iter().position(|t| t.token == Token::Matrix)?;
        let bracketed = start > 0 && matches!(tokens[start - 1].token, Token::Open('(' | '['));
        let (factor, matrix) = tokens.split_at(start - usize::from(bracketed));
        if factor.is_empty() || matching(matrix)? != matrix.len() - 1 {
            return None;
        }
        let factor = match factor {
            [Spaced { token: Token::Minus, .. }] => Expression::integer(-1),
            [factor @ .., Spaced { token: Token::Times, .. }] | factor => {
                let mut parser = Parser::new(factor, self.letters, self.plus != Some(false));
                let factor = parser.expression()?;
                parser.rest().is_empty().then_some(factor)?
            }
        };
        let Form::Matrix(mut rows) = self.item(matrix)? else { return None };
        for cell in rows.iter_mut().flatten() {
            let Form::Quantity(quantity) = cell else { return None };
            let value = std::mem::replace(&mut quantity.value, Expression::integer(0));
            quantity.value = Expression::Multiply(Box::new(factor.clone()), Box::new(value));
        }
        Some(Form::Matrix(rows))
    }

    fn relations(&self, tokens: &[Spaced]) -> Option<Form> {
        let relations: Vec<Relation> = tokens
            .iter()
            .filter_map(|t| match t.token {
                Token::Relation(relation) => Some(relation),
                _ => None,
            })
            .collect();
        let parts = split(tokens, |t| matches!(t, Token::Relation(_)))?;
        // A relation inside brackets is not a relation of the answer.
        if parts.len() != relations.len() + 1 {
            return None;
        }
        let equal = relations.iter().all(|r| matches!(r, Relation::Equal | Relation::About));
        if equal && is_words(parts[0]) {
            // `profit = $18`
            let rest = tokens.len() - parts[1..].iter().map(|p| p.len() + 1).sum::<usize>() + 1;
            return self.item(&tokens[rest..]);
        }
        // What follows an exact value and `≈` is its rounding.
        let rounding = relations
            .iter()
            .position(|r| *r == Relation::About)
            .filter(|&at| equal && self.quantity(parts[at]).is_some_and(|exact| exact.value.is_constant()));
        if let Some(at) = rounding {
            let length = parts[..=at].iter().map(|part| part.len() + 1).sum::<usize>() - 1;
            return self.item(&tokens[..length]);
        }
        if let ([left, right], true) = (parts.as_slice(), equal)
            && let Some(form) = self.named_parts(left, right)
        {
            return Some(form);
        }
        let mut sides: Vec<Quantity> =
            parts.into_iter().map(|part| self.quantity(part)).collect::<Option<_>>()?;
        if !equal {
            return Some(Form::Relations(sides, relations));
        }
        // A chain of equations must be consistent: its constant sides are equal, and the last of them is the answer.
        let constant = |q: &Quantity| q.value.is_constant();
        let exact = relations.iter().all(|r| *r == Relation::Equal);
        let values: Vec<&Quantity> = sides.iter().filter(|q| constant(q)).collect();
        if exact && !values.windows(2).all(|pair| self.same_constant(pair[0], pair[1])) {
            return None;
        }
        let last = sides.pop()?;
        if sides.iter().all(constant) {
            return Some(Form::Quantity(last));
        }
        let first = sides.swap_remove(0);
        Some(Form::Relations(vec![first, last], vec![Relation::Equal]))
    }

    /// `(p, q) = (3, 2)` and `A = \{1, 2\}`: names of something with parts.
    fn named_parts(&self, left: &[Spaced], right: &[Spaced]) -> Option<Form> {
        if let Some(Bracketed::Sequence('(', ')', names)) = bracketed(left) {
            let names: Vec<String> = split(names, is_separator)?
                .into_iter()
                .map(|name| match self.quantity(name)?.value {
                    Expression::Variable(name) => Some(name),
                    _ => None,
                })
                .collect::<Option<_>>()?;
            let Form::Sequence('(', ')', values) = self.item(right)? else { return None };
            let pairs = names.len() == values.len();
            return pairs.then(|| Form::Assignment(names.into_iter().zip(values).collect()));
        }
        let named = self.quantity(left).is_some_and(|q| q.value.is_name());
        let begins = |t: &Spaced| matches!(t.token, Token::Open(_) | Token::Matrix | Token::Reals);
        if !named || !right.iter().any(begins) {
            return None;
        }
        self.item(right).filter(|form| !matches!(form, Form::Quantity(_)))
    }

    fn quantity(&self, tokens: &[Spaced]) -> Option<Quantity> {
        let mut parser = Parser::new(tokens, self.letters, self.plus != Some(false));
        let mut currency = None;
        if let Some(Token::Words(word)) = tokens.first().map(|t| &t.token) {
            currency = Some(unit::leading_currency(word)?);
            parser.skip(1);
        }
        let mut value = parser.expression()?;
        let currency = currency.or(parser.currency.take());
        if let Some(Spaced { token: Token::Words(word), .. }) = parser.rest().first()
            && let Some(factor) = unit::scale(word)
        {
            parser.skip(1);
            value = Expression::Multiply(Box::new(value), Box::new(Expression::integer(factor)));
        }
        let rest = parser.rest();
        let tail = match based(rest) {
            Some(base) => Tail { unit: Some(Unit::base(base)), ..Tail::default() },
            None => unit::tail(rest)?,
        };
        Some(Quantity {
            value,
            unit: currency.or(tail.unit),
            percent: tail.percent,
            qualifier: tail.qualifier,
        })
    }

    fn same_constant(&self, a: &Quantity, b: &Quantity) -> bool {
        if a.value == b.value {
            return true;
        }
        let value = |q: &Quantity| -> Option<Value> { evaluate(&q.value, &Point::origin(self.work)) };
        match (value(a), value(b)) {
            (Some(a_value), Some(b_value)) => {
                let hundredth = |q: &Quantity, v: Value| {
                    if q.percent == a.percent && q.percent == b.percent { Some(v) } else { percent_of(q, v) }
                };
                match (hundredth(a, a_value), hundredth(b, b_value)) {
                    (Some(a), Some(b)) => a.is_same(&b, 0.0),
                    _ => false,
                }
            }
            _ => false,
        }
    }
}

/// A set that is written in words: `all real numbers`, `no solution`.
fn set_in_words(tokens: &[Spaced]) -> Option<Form> {
    let words = tokens.iter().map(|t| match &t.token {
        Token::Words(word) => Some(word.to_lowercase()),
        _ => None,
    });
    match words.collect::<Option<Vec<_>>>()?.join(" ").as_str() {
        "all real numbers" | "all reals" | "real numbers" | "any real number" => Some(Form::Reals),
        "no solution" | "no solutions" | "no real solution" | "no real solutions" | "empty set"
        | "the empty set" => Some(Form::Set(Vec::new())),
        _ => None,
    }
}

fn is_inequality(form: &Form) -> bool {
    matches!(form, Form::Relations(_, relations) if relations.iter().all(|r| *r != Relation::Equal))
}

/// The condition of a set: what follows `x :`, `x |` or `x \in \mathbb{R} :`.
fn condition(inside: &[Spaced]) -> Option<&[Spaced]> {
    let name = matches!(inside.first()?.token, Token::Variable(_));
    let range = matches!(inside.get(1..3), Some([a, b]) if a.token == Token::In && b.token == Token::Reals);
    let at = if range { 3 } else { 1 };
    let sign = matches!(inside.get(at)?.token, Token::Colon | Token::Bar);
    let relation = || inside.iter().any(|t| matches!(t.token, Token::Relation(_)));
    (name && sign && relation()).then(|| &inside[at + 1..])
}

/// The tokens before `^T`.
fn without_transposition(tokens: &[Spaced]) -> Option<&[Spaced]> {
    let is_t = |t: &Spaced| matches!(&t.token, Token::Variable(name) if name == "T");
    let rest = match tokens {
        [rest @ .., power, t] if power.token == Token::Power && is_t(t) => rest,
        [rest @ .., power, open, t, close]
            if power.token == Token::Power
                && open.token == Token::Group
                && close.token == Token::GroupEnd
                && is_t(t) =>
        {
            rest
        }
        _ => return None,
    };
    (matching(rest)? == rest.len() - 1).then_some(rest)
}

fn transposed(rows: &[Vec<Form>]) -> Option<Vec<Vec<Form>>> {
    let columns = rows.first()?.len();
    (0..columns).map(|column| rows.iter().map(|row| row.get(column).cloned()).collect()).collect()
}

/// The value, divided by 100 if there is a percent sign.
fn percent_of(quantity: &Quantity, value: Value) -> Option<Value> {
    match value {
        Value::Exact(v) if quantity.percent => v.divide(&Rational::integer(100)).map(Value::Exact),
        other => Some(other),
    }
}

/// The base of a number, as in `_{8}`.
fn based(rest: &[Spaced]) -> Option<i64> {
    let digits = |t: &Token| match t {
        Token::Number(value, true) => value.to_i64(),
        _ => None,
    };
    match rest {
        [s, n] if s.token == Token::Subscript => digits(&n.token),
        [s, g, n, e]
            if s.token == Token::Subscript && g.token == Token::Group && e.token == Token::GroupEnd =>
        {
            digits(&n.token)
        }
        _ => None,
    }
}
