//! Written calculation, as the chain of thought of a demonstration.

use super::Operation;

/// The steps of a written calculation, each followed by a space.
pub(super) fn write(a: u64, b: u64, operation: Operation) -> String {
    let steps = match operation {
        Operation::Add => add(a, b),
        Operation::Subtract => subtract(a, b),
        Operation::Multiply | Operation::Divide => multiply(a, b),
    };
    steps.into_iter().map(|step| step + " ").collect()
}

/// Column by column from the lowest digit, with the carry as a third summand.
fn add(a: u64, b: u64) -> Vec<String> {
    let mut carry = 0;
    columns(a, b)
        .map(|(x, y)| {
            let sum = x + y + carry;
            let step = if carry > 0 { format!("{x}+{y}+{carry}={sum}") } else { format!("{x}+{y}={sum}") };
            carry = sum / 10;
            step
        })
        .collect()
}

/// Column by column from the lowest digit, the larger number on top; a borrow adds ten to the upper digit.
fn subtract(a: u64, b: u64) -> Vec<String> {
    let mut steps = Vec::new();
    if a < b {
        steps.push(format!("-({b}-{a})"));
    }
    let mut borrow = 0;
    for (x, y) in columns(a.max(b), a.min(b)) {
        let top = if x < y + borrow { x + 10 } else { x };
        let left = top - y - borrow;
        steps.push(if borrow > 0 {
            format!("{top}-{y}-{borrow}={left}")
        } else {
            format!("{top}-{y}={left}")
        });
        borrow = u64::from(top > x);
    }
    steps
}

/// Partial products by the places of one factor, and their running sum.
fn multiply(a: u64, b: u64) -> Vec<String> {
    // The second factor is split by places, unless it has a single one.
    let (whole, split) = if b < 10 { (b, a) } else { (a, b) };
    let mut steps = Vec::new();
    let mut sum = None;
    let mut place = 1u64;
    while place * 10 <= split {
        place *= 10;
    }
    while place > 0 {
        let part = split / place % 10 * place;
        if part > 0 {
            let product = whole * part;
            steps.push(format!("{whole}*{part}={product}"));
            if let Some(before) = sum {
                steps.push(format!("{before}+{product}={}", before + product));
            }
            sum = Some(sum.unwrap_or(0) + product);
        }
        place /= 10;
    }
    steps
}

/// The digits of both numbers by column, lowest first, until both are exhausted.
fn columns(mut a: u64, mut b: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut first = true;
    std::iter::from_fn(move || {
        if !first && a == 0 && b == 0 {
            return None;
        }
        first = false;
        let column = (a % 10, b % 10);
        (a, b) = (a / 10, b / 10);
        Some(column)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_follow_written_calculation() {
        assert_eq!(write(47, 85, Operation::Add), "7+5=12 4+8+1=13 ");
        assert_eq!(write(5, 130, Operation::Add), "5+0=5 0+3=3 0+1=1 ");
        assert_eq!(write(0, 0, Operation::Add), "0+0=0 ");
        assert_eq!(write(85, 47, Operation::Subtract), "15-7=8 8-4-1=3 ");
        assert_eq!(write(47, 85, Operation::Subtract), "-(85-47) 15-7=8 8-4-1=3 ");
        assert_eq!(write(100, 1, Operation::Subtract), "10-1=9 10-0-1=9 1-0-1=0 ");
        assert_eq!(write(47, 85, Operation::Multiply), "47*80=3760 47*5=235 3760+235=3995 ");
        assert_eq!(write(47, 8, Operation::Multiply), "8*40=320 8*7=56 320+56=376 ");
        assert_eq!(write(47, 0, Operation::Multiply), "0*40=0 0*7=0 0+0=0 ");
        assert_eq!(write(0, 47, Operation::Multiply), "0*40=0 0*7=0 0+0=0 ");
        assert_eq!(write(0, 0, Operation::Multiply), "");
    }
}
