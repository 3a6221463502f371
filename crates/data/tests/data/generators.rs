//! The built-in generators: deterministic and correct tasks, disjoint splits.

#![expect(clippy::unwrap_used, reason = "test helpers may panic")]

use std::collections::BTreeSet;

use miette::Diagnostic;
use rloom_core::{Demonstration, PromptSource, Task};
use rloom_data::{
    ArithmeticSettings, CountdownSettings, DataSettings, Dataset, DigitOrder, Digits, GuessSettings, HeldOut,
    Operation, ProgramsSettings, SortingSettings, Source, Split, Style, Wording,
};

const SPLITS: [Split; 3] = [Split::Demonstration, Split::Train, Split::Eval];

fn tasks(source: &Source, split: Split, seed: u64) -> Vec<Task> {
    Dataset::open(&DataSettings::from(source.clone()), split, seed)
        .unwrap()
        .iter()
        .collect::<Result<_, _>>()
        .unwrap()
}

fn prompt(task: &Task) -> &str {
    match &task.prompt {
        PromptSource::Text(text) => text,
        PromptSource::Messages(_) => unreachable!("the prompt format is plain"),
    }
}

fn completion(task: &Task) -> &str {
    match &task.demonstration {
        Some(Demonstration::Completion(text)) => text,
        other => unreachable!("{other:?} is not a completion"),
    }
}

/// The operands and the operation of `47+85=`.
fn operands(task: &Task) -> (i64, char, i64) {
    let text = prompt(task).strip_suffix('=').unwrap();
    let sign = text.find(['+', '-', '*']).unwrap();
    (text[..sign].parse().unwrap(), text[sign..].chars().next().unwrap(), text[sign + 1..].parse().unwrap())
}

fn arithmetic(settings: ArithmeticSettings) -> Source {
    Source::Arithmetic(settings)
}

fn every_operation() -> Vec<Operation> {
    vec![Operation::Add, Operation::Subtract, Operation::Multiply]
}

#[test]
fn answers_are_correct_in_every_split() {
    for digit_order in [DigitOrder::Normal, DigitOrder::Reversed] {
        let source = arithmetic(ArithmeticSettings {
            operations: every_operation(),
            digit_order,
            ..Default::default()
        });
        let mut signs = BTreeSet::new();
        for split in SPLITS {
            for task in tasks(&source, split, 3) {
                let (a, sign, b) = operands(&task);
                signs.insert(sign);
                let value = match sign {
                    '+' => a + b,
                    '-' => a - b,
                    _ => a * b,
                };
                let written = match digit_order {
                    DigitOrder::Normal => task.answer.clone(),
                    DigitOrder::Reversed => {
                        let digits: String = task.answer.trim_start_matches('-').chars().rev().collect();
                        if value < 0 { format!("-{digits}") } else { digits }
                    }
                };
                assert_eq!(written, value.to_string());
                assert_eq!(task.demonstration, Some(task.answer.as_str().into()));
                assert_eq!(task.domain, "arithmetic");
            }
        }
        assert_eq!(signs.len(), 3);
    }
}

#[test]
fn no_held_out_operand_occurs_in_demonstrations_or_training() {
    for (min_digits, max_digits) in [(1, 1), (1, 2), (2, 2), (3, 3)] {
        let size = (max_digits == 3).then_some(30_000);
        let source = arithmetic(ArithmeticSettings {
            min_digits,
            max_digits,
            operations: every_operation(),
            size,
            eval_size: (max_digits == 3).then_some(5_000),
            ..Default::default()
        });
        let values = |split, seed| -> BTreeSet<i64> {
            tasks(&source, split, seed).iter().map(operands).flat_map(|(a, _, b)| [a, b]).collect()
        };
        let shown: BTreeSet<i64> = [1, 2]
            .into_iter()
            .flat_map(|seed| SPLITS[..2].iter().flat_map(move |&s| [(s, seed)]))
            .flat_map(|(s, seed)| values(s, seed))
            .collect();
        let held_out: BTreeSet<i64> =
            [1, 2, 3].into_iter().flat_map(|seed| values(Split::Eval, seed)).collect();
        assert!(!held_out.is_empty() && shown.is_disjoint(&held_out), "{min_digits} to {max_digits} digits");
    }
}

#[test]
fn no_pair_is_in_two_splits_in_either_order() {
    for held_out in [HeldOut::Operands, HeldOut::Pairs] {
        let source = arithmetic(ArithmeticSettings {
            held_out,
            operations: every_operation(),
            eval_size: Some(900),
            ..Default::default()
        });
        let pairs = |split| -> BTreeSet<(i64, i64)> {
            [1, 2]
                .into_iter()
                .flat_map(|seed| tasks(&source, split, seed))
                .map(|t| operands(&t))
                .map(|(a, _, b)| (a.min(b), a.max(b)))
                .collect()
        };
        let [demonstrations, train, eval] = SPLITS.map(pairs);
        assert!(demonstrations.is_disjoint(&train), "{held_out:?}");
        assert!(demonstrations.is_disjoint(&eval), "{held_out:?}");
        assert!(train.is_disjoint(&eval), "{held_out:?}");
        let everything = demonstrations.len() + train.len() + eval.len();
        match held_out {
            // All pairs of the 75 remaining values of 100 are used; the 25 reserved values have 325 pairs.
            HeldOut::Operands => {
                assert_eq!((demonstrations.len() + train.len(), eval.len() <= 325), (75 * 76 / 2, true));
            }
            HeldOut::Pairs => {
                assert!(demonstrations.len() + train.len() == 5050 - 1263 && everything <= 5050);
            }
        }
    }
}

#[test]
fn the_default_recipe_has_500_distinct_held_out_tasks() {
    let eval = tasks(&arithmetic(ArithmeticSettings::default()), Split::Eval, 1);
    assert!(eval.len() >= 500);
    let distinct: BTreeSet<&str> = eval.iter().map(prompt).collect();
    assert_eq!(distinct.len(), eval.len());
}

#[test]
fn splits_are_enumerated_without_repetition() {
    let source = arithmetic(ArithmeticSettings::default());
    for split in SPLITS {
        let all = tasks(&source, split, 1);
        let distinct: BTreeSet<&str> = all.iter().map(prompt).collect();
        // A pair of equal operands occurs once per order of its operands.
        let equal = all.iter().map(operands).filter(|&(a, _, b)| a == b).count();
        assert!(all.len() - distinct.len() <= equal / 2, "{split:?}");
    }
}

#[test]
fn operands_have_the_configured_number_of_digits() {
    let source = arithmetic(ArithmeticSettings {
        min_digits: 2,
        max_digits: 3,
        size: Some(20_000),
        ..Default::default()
    });
    let all: Vec<i64> =
        tasks(&source, Split::Train, 1).iter().map(operands).flat_map(|(a, _, b)| [a, b]).collect();
    assert!(all.iter().all(|v| (10..1000).contains(v)));
    assert!(all.iter().any(|&v| v < 100) && all.iter().any(|&v| v > 900));
    let wide = arithmetic(ArithmeticSettings {
        max_digits: 8,
        size: Some(1000),
        operations: every_operation(),
        ..Default::default()
    });
    assert!(tasks(&wide, Split::Train, 1).iter().any(|t| operands(t).0 > 10_000_000));
}

#[test]
fn worked_demonstrations_end_with_the_answer_and_every_step_is_correct() {
    let short = ArithmeticSettings {
        operations: every_operation(),
        style: Style::Worked,
        max_digits: 3,
        size: Some(5_000),
        ..Default::default()
    };
    let long = ArithmeticSettings {
        operations: vec![Operation::Add, Operation::Subtract],
        max_digits: 16,
        digits: Digits::PowerLaw,
        ..short.clone()
    };
    let [short, long] = [short, long].map(arithmetic).map(|source| tasks(&source, Split::Demonstration, 1));
    assert!(long.iter().any(|task| operands(task).0 > 1_000_000_000_000_000));
    for task in short.into_iter().chain(long) {
        let text = completion(&task).to_owned();
        let (steps, answer) = text.split_once("#### ").unwrap();
        assert_eq!(answer, task.answer);
        for step in steps.split_whitespace().filter(|s| !s.starts_with("-(")) {
            let (left, right) = step.split_once('=').unwrap();
            let sign = left.find(['+', '-', '*']).unwrap();
            let value = match &left[sign..=sign] {
                "+" => left.split('+').map(|v| v.parse::<i64>().unwrap()).sum(),
                "*" => left.split('*').map(|v| v.parse::<i64>().unwrap()).product::<i64>(),
                _ => left.split('-').map(|v| v.parse::<i64>().unwrap()).reduce(|a, b| a - b).unwrap(),
            };
            assert_eq!(value, right.parse::<i64>().unwrap(), "{}{text}", prompt(&task));
        }
    }
}

#[test]
fn some_demonstrations_call_the_calculator() {
    let source = arithmetic(ArithmeticSettings {
        operations: vec![Operation::Multiply],
        style: Style::Calls,
        worked_share: Some(0.5),
        ..Default::default()
    });
    let mut turns = [0; 3];
    for task in tasks(&source, Split::Demonstration, 1) {
        let (written, expression) =
            (task.demonstration.as_ref().unwrap().turns(), prompt(&task).replace('=', ""));
        turns[written.len()] += 1;
        let call = format!("<calculator>{expression}</calculator>");
        assert!(*written == [task.answer.clone()] || *written == [call, format!("#### {}", task.answer)]);
    }
    assert!(turns[1] > turns[2] / 2 && turns[2] > turns[1] / 2, "{turns:?}");
}

#[test]
fn alphabets_are_exact() {
    let sources = [
        arithmetic(ArithmeticSettings {
            operations: vec![Operation::Multiply],
            style: Style::Calls,
            ..Default::default()
        }),
        arithmetic(ArithmeticSettings::default()),
        arithmetic(ArithmeticSettings {
            operations: vec![Operation::Multiply],
            style: Style::Worked,
            ..Default::default()
        }),
        arithmetic(ArithmeticSettings {
            operations: every_operation(),
            style: Style::Worked,
            ..Default::default()
        }),
        arithmetic(ArithmeticSettings { operations: vec![Operation::Subtract], ..Default::default() }),
        Source::Countdown(CountdownSettings { size: Some(2000), ..Default::default() }),
        Source::Countdown(CountdownSettings {
            size: Some(2000),
            wording: Wording::Short,
            ..Default::default()
        }),
        Source::Programs(ProgramsSettings { size: Some(2000), ..Default::default() }),
        Source::Sorting(SortingSettings { size: Some(2000), ..Default::default() }),
    ];
    for source in sources {
        let alphabet = DataSettings::from(source.clone()).alphabet().unwrap();
        let mut occurring = BTreeSet::new();
        for split in SPLITS {
            for task in tasks(&source, split, 1) {
                occurring.extend(prompt(&task).chars());
                occurring.extend(task.answer.chars());
                occurring.extend(
                    task.demonstration.iter().flat_map(Demonstration::turns).flat_map(|turn| turn.chars()),
                );
            }
        }
        assert_eq!(alphabet, occurring.into_iter().collect::<String>(), "{source:?}");
    }
}

#[test]
fn tasks_are_functions_of_seed_split_and_position() {
    for source in [
        arithmetic(ArithmeticSettings { size: Some(50), ..Default::default() }),
        power_law(ArithmeticSettings { size: Some(50), eval_size: Some(50), ..Default::default() }),
        Source::Countdown(CountdownSettings { size: Some(50), ..Default::default() }),
        Source::Guess(GuessSettings { size: Some(50), ..Default::default() }),
        Source::Programs(ProgramsSettings { size: Some(50), ..Default::default() }),
        Source::Sorting(SortingSettings { size: Some(50), ..Default::default() }),
    ] {
        for split in SPLITS {
            let first = tasks(&source, split, 1);
            assert_eq!(first, tasks(&source, split, 1));
            assert_ne!(first, tasks(&source, split, 2));
            let dataset = Dataset::open(&DataSettings::from(source.clone()), split, 1).unwrap();
            for position in [49, 7, 0] {
                assert_eq!(dataset.get(position).unwrap(), first[position as usize]);
            }
        }
    }
    // Another order of the same tasks would change every run.
    let golden: Vec<String> =
        tasks(&arithmetic(ArithmeticSettings { size: Some(3), ..Default::default() }), Split::Train, 1)
            .iter()
            .map(|t| format!("{}{}", prompt(t), t.answer))
            .collect();
    assert_eq!(golden, GOLDEN);
}

const FLAGSHIP: [&str; 8] = [
    "739+340=1079",
    "120+784=904",
    "874+861=1735",
    "356+988=1344",
    "867+813=1680",
    "225+709=934",
    "895+470=1365",
    "989+854=1843",
];

/// The tasks of recipes/arithmetic.toml.
#[test]
fn tasks_of_the_flagship_recipe_do_not_change() {
    let source = arithmetic(ArithmeticSettings {
        min_digits: 3,
        max_digits: 3,
        style: Style::Mixed,
        worked_share: Some(0.3),
        ..Default::default()
    });
    let settings = DataSettings::from(source);
    let shown = |split| -> Vec<String> {
        let dataset = Dataset::open(&settings, split, 1).unwrap();
        let tasks = (0..2).chain([9_999]).filter_map(|position| dataset.get(position).ok());
        tasks.map(|task| format!("{}{}", prompt(&task), completion(&task))).collect()
    };
    assert_eq!(SPLITS.map(shown).concat(), FLAGSHIP);
}

fn power_law(settings: ArithmeticSettings) -> Source {
    arithmetic(ArithmeticSettings { digits: Digits::PowerLaw, min_digits: 2, max_digits: 12, ..settings })
}

#[test]
fn power_law_operands_have_equal_lengths_with_the_expected_frequencies() {
    let source =
        power_law(ArithmeticSettings { size: Some(50_000), eval_size: Some(50_000), ..Default::default() });
    for split in SPLITS {
        let mut counts = [0u32; 13];
        for task in tasks(&source, split, 1) {
            let (a, _, b) = operands(&task);
            let digits = a.to_string().len();
            assert_eq!(digits, b.to_string().len(), "{}", prompt(&task));
            assert_eq!(task.answer, (a + b).to_string());
            counts[digits] += 1;
        }
        let total: f64 = (2..=12).map(|d| 1.0 / f64::from(d * d)).sum();
        // Chi-squared with 10 degrees of freedom, 99.99 % quantile 35.6.
        let chi: f64 = (2..=12u32)
            .map(|d| {
                let expected = 50_000.0 / f64::from(d * d) / total;
                (f64::from(counts[d as usize]) - expected).powi(2) / expected
            })
            .sum();
        assert!(chi < 35.6, "{split:?}: {counts:?}, chi-squared {chi}");
        assert_eq!(counts[0] + counts[1], 0);
    }
}

#[test]
fn power_law_splits_are_disjoint() {
    for held_out in [HeldOut::Operands, HeldOut::Pairs] {
        let source = arithmetic(ArithmeticSettings {
            digits: Digits::PowerLaw,
            max_digits: 3,
            held_out,
            operations: every_operation(),
            size: Some(20_000),
            eval_size: Some(20_000),
            ..Default::default()
        });
        let pairs = |split| -> BTreeSet<(i64, i64)> {
            let all = [1, 2].into_iter().flat_map(|seed| tasks(&source, split, seed));
            all.map(|t| operands(&t)).map(|(a, _, b)| (a.min(b), a.max(b))).collect()
        };
        let [demonstrations, train, eval] = SPLITS.map(pairs);
        assert!(demonstrations.is_disjoint(&train), "{held_out:?}");
        assert!(demonstrations.is_disjoint(&eval) && train.is_disjoint(&eval), "{held_out:?}");
        let values = |pairs: &BTreeSet<(i64, i64)>| -> BTreeSet<i64> {
            pairs.iter().flat_map(|&(a, b)| [a, b]).collect()
        };
        let is_disjoint = values(&eval).is_disjoint(&values(&(&demonstrations | &train)));
        assert_eq!(is_disjoint, held_out == HeldOut::Operands);
        // Short tasks are few and frequent: all pairs of one digit occur.
        let short = [&demonstrations, &train, &eval].map(|p| p.iter().filter(|(_, b)| *b < 10).count());
        match held_out {
            // 3 of the 10 values are reserved.
            HeldOut::Operands => assert_eq!((short[0] + short[1], short[2]), (7 * 8 / 2, 3 * 4 / 2)),
            HeldOut::Pairs => assert_eq!(short.iter().sum::<usize>(), 10 * 11 / 2),
        }
    }
}

const GOLDEN: [&str; 3] = ["29+1=30", "55+23=78", "85+31=116"];

/// Evaluates an expression of whole numbers, `+-*/` and parentheses: two levels of precedence, left to right.
fn evaluate(text: &str) -> (f64, Vec<u64>) {
    fn sum(chars: &[char], at: &mut usize, used: &mut Vec<u64>) -> f64 {
        let mut value = product(chars, at, used);
        while *at < chars.len() && matches!(chars[*at], '+' | '-') {
            let sign = chars[*at];
            *at += 1;
            let right = product(chars, at, used);
            value = if sign == '+' { value + right } else { value - right };
        }
        value
    }
    fn product(chars: &[char], at: &mut usize, used: &mut Vec<u64>) -> f64 {
        let mut value = atom(chars, at, used);
        while *at < chars.len() && matches!(chars[*at], '*' | '/') {
            let sign = chars[*at];
            *at += 1;
            let right = atom(chars, at, used);
            value = if sign == '*' { value * right } else { value / right };
        }
        value
    }
    fn atom(chars: &[char], at: &mut usize, used: &mut Vec<u64>) -> f64 {
        if chars[*at] == '(' {
            *at += 1;
            let value = sum(chars, at, used);
            assert_eq!(chars[*at], ')');
            *at += 1;
            return value;
        }
        let digits: String = chars[*at..].iter().take_while(|c| c.is_ascii_digit()).collect();
        *at += digits.len();
        let number = digits.parse().unwrap();
        used.push(number);
        number as f64
    }
    let chars: Vec<char> = text.chars().collect();
    let (mut at, mut used) = (0, Vec::new());
    let value = sum(&chars, &mut at, &mut used);
    assert_eq!(at, chars.len(), "{text}");
    (value, used)
}

#[test]
fn countdown_tasks_are_solvable_and_their_numbers_disjoint() {
    let source = Source::Countdown(CountdownSettings {
        wording: Wording::Short,
        size: Some(3_000),
        eval_size: Some(1_000),
        ..Default::default()
    });
    let sets = SPLITS.map(|split| {
        let mut sets = BTreeSet::new();
        for task in tasks(&source, split, 1) {
            let (numbers, target) = prompt(&task).strip_suffix(':').unwrap().split_once(" = ").unwrap();
            let mut numbers: Vec<u64> = numbers.split(' ').map(|n| n.parse().unwrap()).collect();
            let (value, mut used) = evaluate(&task.answer);
            assert_eq!(value, target.parse::<f64>().unwrap(), "{}", task.answer);
            numbers.sort_unstable();
            used.sort_unstable();
            assert_eq!(numbers, used);
            assert!((1.0..=999.0).contains(&value));
            sets.insert(numbers);
        }
        sets
    });
    assert!(sets[0].is_disjoint(&sets[1]) && sets[0].is_disjoint(&sets[2]) && sets[1].is_disjoint(&sets[2]));
    let operations: BTreeSet<char> = tasks(&source, Split::Train, 1)
        .iter()
        .flat_map(|t| t.answer.chars().collect::<Vec<_>>())
        .filter(|c| "+-*/".contains(*c))
        .collect();
    assert_eq!(operations.len(), 4);
}

#[test]
fn sorting_answers_are_correct_and_lists_disjoint() {
    let source = Source::Sorting(SortingSettings { max_number: 20, size: Some(3_000), ..Default::default() });
    let lists = SPLITS.map(|split| {
        let mut lists = BTreeSet::new();
        for task in tasks(&source, split, 1) {
            let given = prompt(&task).strip_prefix("sort ").unwrap().strip_suffix(':').unwrap();
            let mut numbers: Vec<u64> = given.split(' ').map(|n| n.parse().unwrap()).collect();
            numbers.sort_unstable();
            assert_eq!(task.answer, numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" "));
            lists.insert(numbers);
        }
        lists
    });
    assert!(
        lists[0].is_disjoint(&lists[1]) && lists[0].is_disjoint(&lists[2]) && lists[1].is_disjoint(&lists[2])
    );
}

#[test]
fn ranges_too_narrow_for_a_split_are_an_error() {
    let source = Source::Sorting(SortingSettings {
        min_length: 2,
        max_length: 2,
        max_number: 1,
        held_out_share: 0.01,
        ..Default::default()
    });
    let dataset = Dataset::open(&DataSettings::from(source), Split::Eval, 1).unwrap();
    let error = dataset.get(0).unwrap_err();
    assert!(error.to_string().contains("found no task 0") && error.help().is_some(), "{error}");
}

/// Range and secret of a task: `[low, secret, high]`.
fn secret(task: &Task) -> [u64; 3] {
    let numbers: Vec<u64> = task.answer.split(" <= ").map(|n| n.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

#[test]
fn no_held_out_secret_occurs_in_demonstrations_or_training_under_its_range() {
    let source = Source::Guess(GuessSettings {
        size: Some(4000),
        eval_size: Some(2000),
        min_numbers: 5,
        ..Default::default()
    });
    let games = |split| -> BTreeSet<[u64; 3]> {
        [1, 2].into_iter().flat_map(|seed| tasks(&source, split, seed)).map(|t| secret(&t)).collect()
    };
    let [demonstrations, train, eval] = SPLITS.map(games);
    assert!(demonstrations.is_disjoint(&train) && train.is_disjoint(&eval));
    assert!(demonstrations.is_disjoint(&eval));
    for split in [&demonstrations, &train, &eval] {
        let secrets: BTreeSet<u64> = split.iter().map(|&[_, secret, _]| secret).collect();
        assert_eq!(secrets, (0..32).collect(), "every number is a secret in every split");
    }
}

#[test]
fn demonstrated_games_follow_the_rules_with_uniform_guesses() {
    let source = Source::Guess(GuessSettings { size: Some(5000), ..Default::default() });
    let (mut turns, mut longest) = (0, 0);
    for task in tasks(&source, Split::Demonstration, 1) {
        let [mut low, secret, mut high] = secret(&task);
        assert_eq!(prompt(&task), format!("{low}-{high}:"));
        assert!((20..=31).contains(&(high - low + 1)) && high <= 31);
        let game = task.demonstration.unwrap();
        for (n, guess) in game.turns().iter().enumerate() {
            let guess: u64 = guess.parse().unwrap();
            assert!((low..=high).contains(&guess), "{guess} is ruled out");
            assert_eq!(guess == secret, n + 1 == game.turns().len());
            if guess < secret { low = guess + 1 } else { high = guess.saturating_sub(1) }
        }
        turns += game.turns().len();
        longest = longest.max(game.turns().len());
    }
    // Uniform guesses take 2(1 + 1/m)·Hₘ − 3 turns on average: 4.96 over ranges of m = 20 to 31 numbers.
    let mean = turns as f64 / 5000.0;
    assert!((4.85..5.06).contains(&mean) && longest > 9, "{mean} turns, at most {longest}");
}

#[test]
fn programs_have_tests_that_careless_ones_fail() {
    let settings = ProgramsSettings { size: Some(400), careless_share: 0.5, ..Default::default() };
    let all = tasks(&Source::Programs(settings), Split::Demonstration, 1);
    let numbers = |task: &Task| -> Vec<u64> {
        let words = prompt(task).split(|c: char| !c.is_ascii_digit());
        words.filter_map(|word| word.parse().ok()).collect()
    };
    let mut careless = 0;
    for task in &all {
        let [a, b] = numbers(task)[..] else { panic!("{}", prompt(task)) };
        for test in task.extra["tests"].as_array().unwrap() {
            let x = test["arguments"][0].as_u64().unwrap();
            assert_eq!(test["expected"], (x + a) * b);
            assert_ne!(test["expected"], x + a * b, "a careless program passes");
        }
        if completion(task) == format!("def f(x):return x+{a}*{b}") {
            careless += 1;
        } else {
            assert_eq!(completion(task), task.answer);
        }
    }
    assert!((150..250).contains(&careless), "{careless} of 400");
    let held_out = tasks(&Source::Programs(ProgramsSettings::default()), Split::Eval, 1);
    let pairs = |tasks: &[Task]| tasks.iter().map(&numbers).collect::<BTreeSet<_>>();
    assert!(pairs(&all).is_disjoint(&pairs(&held_out)));
}
