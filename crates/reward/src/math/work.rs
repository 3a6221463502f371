//! The limit on the work of one judgement.

use std::cell::Cell;

/// Maximum steps of a judgement: nodes of expressions that are evaluated, factors of factorials, pairs of items that are
/// compared, tokens that are read. The largest answers of real data sets take less than a hundredth of it.
pub(super) const MAX_STEPS: u32 = 300_000;

/// Steps left to a judgement. When none are left, nothing has a value and nothing is equal.
#[derive(Debug)]
pub(crate) struct Work {
    left: Cell<u32>,
}

impl Work {
    pub(crate) fn new() -> Self {
        Self { left: Cell::new(MAX_STEPS) }
    }

    /// Takes steps; `None` if fewer are left.
    pub(crate) fn spend(&self, steps: usize) -> Option<()> {
        let left = u32::try_from(steps).ok().and_then(|steps| self.left.get().checked_sub(steps));
        self.left.set(left.unwrap_or(0));
        left.map(|_| ())
    }

    #[cfg(test)]
    pub(super) fn spent(&self) -> u32 {
        MAX_STEPS - self.left.get()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Judgement, Reference};
    use super::*;

    fn steps(reference: &str, candidate: &str) -> u32 {
        let work = Work::new();
        Reference::read(reference).judge_within(candidate, 0.0, &work);
        work.spent()
    }

    #[test]
    fn work_grows_linearly_with_the_length_of_an_answer() {
        for (reference, part) in [
            ("18", "1+"),
            ("18", "(2)"),
            ("18", "2^1 \\cdot "),
            ("x+1", "x-"),
            ("1, 2", "3,"),
            ("[0, 1]", "[2,3] \\cup "),
            ("x > 5", "x > 2 or "),
            ("1+i", "i \\cdot "),
            ("18", "-"),
        ] {
            let count = |times: usize| steps(reference, &format!("{}1", part.repeat(times)));
            let (short, long) = (count(20), count(40));
            assert!(long <= 2 * short + 20, "{part}: {short} steps, then {long}");
        }
    }

    #[test]
    fn a_text_of_any_length_takes_few_steps() {
        for text in ["1+", "(", "9^", "\\frac{1}{", "1,", "x", " ", "$", "\\boxed{"] {
            assert!(steps("18", &text.repeat(100_000 / text.len())) < 20_000, "{text}");
        }
    }

    #[test]
    fn expensive_answers_end_when_the_steps_are_used_up() {
        // Each pair of items is compared, and each factorial has 300 factors.
        let set = |order: &mut dyn Iterator<Item = u32>| {
            let items: Vec<String> = order.map(|i| format!("300! - {i}")).collect();
            format!("\\{{{}\\}}", items.join(", "))
        };
        let (forward, backward) = (set(&mut (0..60)), set(&mut (0..60).rev()));
        let work = Work::new();
        let verdict = Reference::read(&forward).judge_within(&backward, 0.0, &work);
        assert_eq!((verdict, work.spent()), (Judgement::Different, MAX_STEPS));
        assert_eq!(work.spend(1), None);
    }

    #[test]
    fn large_answers_stay_within_the_steps() {
        let items = |order: &mut dyn Iterator<Item = u32>| {
            order.map(|i| format!("\\frac{{{i}}}{{7}}")).collect::<Vec<_>>().join(", ")
        };
        let (forward, backward) = (items(&mut (0..60)), items(&mut (0..60).rev()));
        assert_eq!(Reference::read(&forward).judge(&backward, 0.0), Judgement::Same);
        assert!(steps(&forward, &backward) < MAX_STEPS / 5);
    }
}
