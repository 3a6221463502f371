//! Search by BM25 in a corpus in memory.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use rloom_text::calls::ToolDeclaration;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::source::text;
use crate::{Output, Source, ToolError};

/// Saturation of the frequency of a word in a document.
const K1: f64 = 1.2;
/// Influence of the length of a document.
const B: f64 = 0.75;
/// Longest query in words; the others are ignored.
const LONGEST_QUERY: usize = 256;

#[derive(Debug, Deserialize)]
struct Document {
    #[serde(default)]
    title: String,
    text: String,
}

/// A corpus with its index.
#[derive(Debug)]
pub(crate) struct Corpus {
    tool: ToolDeclaration,
    documents: Vec<Document>,
    /// Number of words of each document.
    lengths: Vec<u32>,
    mean_length: f64,
    /// Documents of each word with its frequency, in order.
    postings: HashMap<String, Vec<(u32, u32)>>,
    top_k: usize,
}

impl Corpus {
    pub(crate) fn read(name: &str, path: &Path, top_k: usize) -> Result<Self, ToolError> {
        let content = std::fs::read_to_string(path)
            .map_err(|source| ToolError::Read { path: path.to_owned(), source })?;
        let mut documents = Vec::new();
        for (line, text) in content.lines().enumerate().filter(|(_, text)| !text.trim().is_empty()) {
            let document = serde_json::from_str(text).map_err(|error| ToolError::Document {
                path: path.to_owned(),
                line: line + 1,
                reason: error.to_string(),
            })?;
            documents.push(document);
        }
        Ok(Self::new(name, documents, top_k))
    }

    fn new(name: &str, documents: Vec<Document>, top_k: usize) -> Self {
        let mut postings: HashMap<String, Vec<(u32, u32)>> = HashMap::new();
        let mut lengths = Vec::new();
        for (number, document) in documents.iter().enumerate() {
            let number = number as u32;
            let mut length = 0;
            for word in words(&document.title).chain(words(&document.text)) {
                length += 1;
                let places = postings.entry(word).or_default();
                match places.last_mut() {
                    Some((last, count)) if *last == number => *count += 1,
                    _ => places.push((number, 1)),
                }
            }
            lengths.push(length);
        }
        let total: f64 = lengths.iter().map(|&length| f64::from(length)).sum();
        let mean_length = total / lengths.len().max(1) as f64;
        let tool = ToolDeclaration {
            name: name.to_owned(),
            description: "Searches a corpus and returns the passages that fit the query best.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": { "query": { "type": "string", "description": "Words to search for" } },
                "required": ["query"],
            }),
        };
        Self { tool, documents, lengths, mean_length, postings, top_k }
    }

    /// The best documents, best first; of equally good ones, the earlier in the corpus.
    fn best(&self, query: &str) -> Vec<(usize, f64)> {
        let count = self.documents.len() as f64;
        let mut scores = vec![0.0; self.documents.len()];
        for word in words(query).take(LONGEST_QUERY) {
            let Some(places) = self.postings.get(&word) else { continue };
            let found = places.len() as f64;
            let rarity = (1.0 + (count - found + 0.5) / (found + 0.5)).ln();
            for &(document, frequency) in places {
                let length = f64::from(self.lengths[document as usize]) / self.mean_length;
                let frequency = f64::from(frequency);
                scores[document as usize] +=
                    rarity * frequency * (K1 + 1.0) / (frequency + K1 * (1.0 - B + B * length));
            }
        }
        let mut best: Vec<(usize, f64)> =
            scores.into_iter().enumerate().filter(|(_, score)| *score > 0.0).collect();
        best.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        best.truncate(self.top_k);
        best
    }
}

impl Source for Corpus {
    fn tools(&self) -> &[ToolDeclaration] {
        std::slice::from_ref(&self.tool)
    }

    fn call(&self, _: &str, arguments: &Map<String, Value>, _: Duration) -> Result<Output, ToolError> {
        let passages: Vec<String> = self
            .best(text(arguments, "query"))
            .iter()
            .map(|(document, _)| match &self.documents[*document] {
                Document { title, text } if title.is_empty() => text.clone(),
                Document { title, text } => format!("{title}: {text}"),
            })
            .collect();
        Ok(Output::ok(if passages.is_empty() { "nothing found".to_owned() } else { passages.join("\n") }))
    }
}

/// The words of a text in lower case: runs of letters and digits.
fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(texts: &[&str]) -> Corpus {
        let document = |text: &&str| Document { title: String::new(), text: (*text).to_owned() };
        Corpus::new("search", texts.iter().map(document).collect(), 2)
    }

    /// Scores from the PyPI package `rank-bm25` have another rarity; these are computed by hand from the equation.
    #[test]
    fn rare_words_and_short_documents_score_higher() {
        let corpus = corpus(&["the cat sat", "the dog sat on the long mat", "a bird"]);
        let best = corpus.best("The CAT, the");
        assert_eq!(best.iter().map(|(document, _)| *document).collect::<Vec<_>>(), [0, 1]);
        // Three documents of 3, 7 and 2 words, 4 on average. `cat` is in one, `the` in two.
        let weight =
            |frequency: f64, length: f64| frequency * 2.2 / (frequency + 1.2 * (0.25 + 0.75 * length / 4.0));
        let (cat, the) = ((1.0f64 + 2.5 / 1.5).ln(), (1.0f64 + 1.5 / 2.5).ln());
        let expected = [(cat + 2.0 * the) * weight(1.0, 3.0), 2.0 * the * weight(2.0, 7.0)];
        for ((_, score), expected) in best.iter().zip(expected) {
            assert!((score - expected).abs() < 1e-12, "{score} {expected}");
        }
    }

    #[test]
    fn ties_are_in_the_order_of_the_corpus_and_results_are_limited() {
        let corpus = corpus(&["x", "same", "same", "same"]);
        assert_eq!(corpus.best("same").iter().map(|(document, _)| *document).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(corpus.best("absent"), []);
        assert_eq!(corpus.best(""), []);
        assert_eq!(super::Corpus::new("search", Vec::new(), 3).best("x"), []);
    }
}
