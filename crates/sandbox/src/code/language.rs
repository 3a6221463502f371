use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Language of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Python 3.
    Python,
    /// Bash.
    Bash,
    /// JavaScript, run by Node.
    Javascript,
    /// C, compiled by `gcc`.
    C,
    /// C++, compiled by `g++`.
    Cpp,
    /// SQL, run by SQLite on a database that the statements of standard input create.
    Sql,
}

impl Language {
    /// The language with a name, such as those after the fence of a code block.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "python" | "python3" | "py" => Self::Python,
            "bash" | "sh" | "shell" => Self::Bash,
            "javascript" | "js" | "node" => Self::Javascript,
            "c" => Self::C,
            "cpp" | "c++" | "cc" | "cxx" => Self::Cpp,
            "sql" | "sqlite" => Self::Sql,
            _ => return None,
        })
    }

    /// Name in requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Bash => "bash",
            Self::Javascript => "nodejs",
            Self::C | Self::Cpp => "cpp",
            Self::Sql => "sql",
        }
    }

    /// File name of the source.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Python => "main.py",
            Self::Bash => "main.sh",
            Self::Javascript => "main.js",
            Self::C => "main.c",
            Self::Cpp => "main.cpp",
            Self::Sql => "main.sql",
        }
    }

    /// Command that compiles the source to `main`, if it has to be compiled.
    pub(crate) fn compiler(self) -> Option<&'static [&'static str]> {
        match self {
            Self::C => Some(&["gcc", "-O2", "-std=gnu17", "-o", "main", "main.c", "-lm"]),
            Self::Cpp => Some(&["g++", "-O2", "-std=gnu++17", "-o", "main", "main.cpp"]),
            _ => None,
        }
    }

    /// Command that runs the program.
    pub(crate) fn command(self) -> &'static [&'static str] {
        match self {
            Self::Python => &["python3", "-I", "main.py"],
            Self::Bash => &["bash", "main.sh"],
            Self::Javascript => &["node", "main.js"],
            Self::C | Self::Cpp => &["./main"],
            Self::Sql => &["python3", "-I", "-S", "query.py"],
        }
    }
}
