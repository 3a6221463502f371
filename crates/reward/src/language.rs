use std::collections::BTreeMap;
use std::sync::LazyLock;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use whatlang::{Lang, Script};

use crate::{Assessment, Completion, ComponentError, JudgeError, Reward};

/// Languages by their code in ISO 639-1.
const LANGUAGES: [(&str, Lang); 70] = [
    ("af", Lang::Afr),
    ("ak", Lang::Aka),
    ("am", Lang::Amh),
    ("ar", Lang::Ara),
    ("az", Lang::Aze),
    ("be", Lang::Bel),
    ("bg", Lang::Bul),
    ("bn", Lang::Ben),
    ("ca", Lang::Cat),
    ("cs", Lang::Ces),
    ("cy", Lang::Cym),
    ("da", Lang::Dan),
    ("de", Lang::Deu),
    ("el", Lang::Ell),
    ("en", Lang::Eng),
    ("eo", Lang::Epo),
    ("es", Lang::Spa),
    ("et", Lang::Est),
    ("fa", Lang::Pes),
    ("fi", Lang::Fin),
    ("fr", Lang::Fra),
    ("gu", Lang::Guj),
    ("he", Lang::Heb),
    ("hi", Lang::Hin),
    ("hr", Lang::Hrv),
    ("hu", Lang::Hun),
    ("hy", Lang::Hye),
    ("id", Lang::Ind),
    ("it", Lang::Ita),
    ("ja", Lang::Jpn),
    ("jv", Lang::Jav),
    ("ka", Lang::Kat),
    ("km", Lang::Khm),
    ("kn", Lang::Kan),
    ("ko", Lang::Kor),
    ("la", Lang::Lat),
    ("lt", Lang::Lit),
    ("lv", Lang::Lav),
    ("mk", Lang::Mkd),
    ("ml", Lang::Mal),
    ("mr", Lang::Mar),
    ("my", Lang::Mya),
    ("nb", Lang::Nob),
    ("ne", Lang::Nep),
    ("nl", Lang::Nld),
    ("or", Lang::Ori),
    ("pa", Lang::Pan),
    ("pl", Lang::Pol),
    ("pt", Lang::Por),
    ("ro", Lang::Ron),
    ("ru", Lang::Rus),
    ("si", Lang::Sin),
    ("sk", Lang::Slk),
    ("sl", Lang::Slv),
    ("sn", Lang::Sna),
    ("sr", Lang::Srp),
    ("sv", Lang::Swe),
    ("ta", Lang::Tam),
    ("te", Lang::Tel),
    ("th", Lang::Tha),
    ("tk", Lang::Tuk),
    ("tl", Lang::Tgl),
    ("tr", Lang::Tur),
    ("uk", Lang::Ukr),
    ("ur", Lang::Urd),
    ("uz", Lang::Uzb),
    ("vi", Lang::Vie),
    ("yi", Lang::Yid),
    ("zh", Lang::Cmn),
    ("zu", Lang::Zul),
];

/// Other codes of the same languages.
const OTHER_CODES: [(&str, &str); 4] = [("zh-cn", "zh"), ("zh-tw", "zh"), ("no", "nb"), ("iw", "he")];

/// The language of a code.
pub(crate) fn named(code: &str) -> Option<Lang> {
    static BY_CODE: LazyLock<BTreeMap<&str, Lang>> = LazyLock::new(|| LANGUAGES.into_iter().collect());
    let code = OTHER_CODES.iter().find(|(other, _)| *other == code).map_or(code, |(_, code)| code);
    BY_CODE.get(code).copied()
}

/// The language that a text is most likely written in; `None` for a text without letters.
pub(crate) fn detect(text: &str) -> Option<Lang> {
    whatlang::detect_lang(text)
}

/// The share of the letters that are in the script of a language, if the completion is in that language, else 0.
///
/// The language is detected by script and by the frequency of sequences of letters. Among languages of one script a few sentences
/// are needed; close ones, such as Danish and Norwegian, are confused now and then. Foreign scripts within a text, such as Chinese within
/// English, lower the share.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Language {
    /// Code of the language in ISO 639-1, such as `en`, `de` or `zh`.
    pub language: String,
}

impl Reward for Language {
    fn judge(&self, completion: &Completion<'_>) -> Result<Assessment, JudgeError> {
        let expected = named(&self.language);
        let is_expected = expected.is_some() && detect(completion.text) == expected;
        let value = expected.filter(|_| is_expected).map_or(0.0, |language| share(completion.text, language));
        Ok(Assessment::value(value))
    }

    fn validate(&self) -> Result<(), ComponentError> {
        match named(&self.language) {
            Some(_) => Ok(()),
            None => Err(ComponentError::UnknownLanguage {
                language: self.language.clone(),
                known: LANGUAGES.map(|(code, _)| code).join(", "),
            }),
        }
    }
}

/// Share of the letters of a text that are in the scripts of a language.
fn share(text: &str, language: Lang) -> f64 {
    let is_own = |script: Script| {
        script.langs().contains(&language) || (language == Lang::Jpn && script == Script::Mandarin)
    };
    let (mut own, mut all) = (0usize, 0usize);
    let mut buffer = [0; 4];
    let mut seen: BTreeMap<char, Option<Script>> = BTreeMap::new();
    for character in text.chars().filter(|character| character.is_alphabetic()) {
        let script = *seen
            .entry(character)
            .or_insert_with(|| whatlang::detect_script(character.encode_utf8(&mut buffer)));
        all += 1;
        own += usize::from(script.is_some_and(is_own));
    }
    if all == 0 { 0.0 } else { own as f64 / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages() {
        for (code, text) in [
            ("en", "The children walked home together because the rain had finally stopped."),
            ("de", "Die Kinder gingen zusammen nach Hause, weil der Regen endlich aufgehört hatte."),
            ("fr", "Les enfants sont rentrés ensemble à la maison parce que la pluie avait cessé."),
            ("es", "Los niños volvieron juntos a casa porque por fin había dejado de llover."),
            ("ru", "Дети вместе пошли домой, потому что дождь наконец прекратился."),
            ("zh", "孩子们一起走回家,因为雨终于停了。"),
            ("ja", "雨がやっと止んだので、子どもたちは一緒に家に帰りました。"),
            ("ko", "비가 마침내 그쳐서 아이들은 함께 집으로 걸어갔다."),
            ("ar", "عاد الأطفال معا إلى البيت لأن المطر توقف أخيرا."),
            ("hi", "बारिश आखिरकार रुक गई थी इसलिए बच्चे एक साथ घर चले गए।"),
            ("th", "เด็กๆ เดินกลับบ้านด้วยกันเพราะฝนหยุดตกแล้ว"),
        ] {
            assert_eq!(detect(text), named(code), "{text}");
            assert_eq!(share(text, named(code).unwrap_or(Lang::Eng)), 1.0, "{text}");
        }
        assert_eq!(detect("42 + 1"), None);
        assert_eq!(named("zh-cn"), Some(Lang::Cmn));
        assert_eq!(named("xx"), None);
    }

    #[test]
    fn foreign_scripts_lower_the_share() {
        assert_eq!(share("we think 我们", Lang::Eng), 7.0 / 9.0);
        assert_eq!(share("12 + 3", Lang::Eng), 0.0);
    }

    #[test]
    fn codes_are_sorted_and_each_has_a_language_of_its_own() {
        assert!(LANGUAGES.is_sorted_by(|a, b| a.0 < b.0));
        let mut languages: Vec<Lang> = LANGUAGES.iter().map(|(_, language)| *language).collect();
        languages.sort_by_key(Lang::code);
        languages.dedup();
        assert_eq!(languages.len(), LANGUAGES.len());
    }
}
