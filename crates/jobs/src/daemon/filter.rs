//! Filters of lists, as `gcloud` and the API write them: `jobId:rnn* AND state:FAILED`, `createTime>"2026-01-01"`, `labels.team=vision`.
//!
//! A term is a field, one of `:` (contains, in letters of either case), `=`, `!=`, `<`, `<=`, `>`, `>=`, and a value. With `:` and `=` a `*`
//! at the end takes any rest, and `*` alone whatever is there; `labels:NAME` asks for a label of that name. Times are compared as times.
//! NOT or `-` stands before a term or a bracket. AND binds more than OR, and OR more than an AND that is left out, as with `gcloud`.

use phalanx_launch::lifecycle::State;
use phalanx_launch::store::now;
use phalanx_yaml::suggest;
use serde_json::Value as Json;

use super::times::milliseconds;

/// More brackets in one another than this are a mistake.
const DEEPEST: usize = 16;
/// The fields of a job that can be asked for; labels as `labels.NAME`.
const FIELDS: [&str; 7] = [
    "jobId",
    "state",
    "createTime",
    "startTime",
    "endTime",
    "errorMessage",
    "labels",
];

/// The fields that are times.
const TIMES: [&str; 3] = ["createTime", "startTime", "endTime"];

/// A filter.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Filter {
    All(Vec<Self>),
    Any(Vec<Self>),
    Not(Box<Self>),
    Term {
        field: String,
        relation: &'static str,
        value: String,
    },
    Time {
        field: String,
        relation: &'static str,
        /// Milliseconds since 1970.
        value: i64,
    },
}

impl Filter {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut words = words(text)?.into_iter().peekable();
        let mut stack = Vec::new();
        let filter = filter(&mut words, &mut stack)?;
        match words.next() {
            None => Ok(filter),
            Some(word) => Err(format!(
                "the filter has {:?} where it should end",
                word.text
            )),
        }
    }

    /// Whether a job passes.
    pub(super) fn takes(&self, job: &Json) -> bool {
        match self {
            Self::All(filters) => filters.iter().all(|filter| filter.takes(job)),
            Self::Any(filters) => filters.iter().any(|filter| filter.takes(job)),
            Self::Not(filter) => !filter.takes(job),
            Self::Term {
                field,
                relation,
                value,
            } => {
                if field == "labels" {
                    let labels = job["labels"].as_object().into_iter().flatten();
                    return labels
                        .into_iter()
                        .any(|(name, _)| compare(name, relation, value));
                }
                let found = match field.strip_prefix("labels.") {
                    Some(name) => &job["labels"][name],
                    None => &job[field.as_str()],
                };
                match found.as_str() {
                    Some(found) => compare(found, relation, value),
                    // What is not there is another than each value, and nothing else.
                    None => *relation == "!=",
                }
            }
            Self::Time {
                field,
                relation,
                value,
            } => {
                let found = job[field.as_str()].as_str();
                match found.and_then(|found| milliseconds(found, 0).ok()) {
                    Some(found) => holds(&found, relation, value),
                    None => *relation == "!=",
                }
            }
        }
    }
}

fn compare(found: &str, relation: &str, value: &str) -> bool {
    let start = value.strip_suffix('*');
    match (relation, start) {
        (":", Some(start)) => found.to_lowercase().starts_with(&start.to_lowercase()),
        (":", None) => found.to_lowercase().contains(&value.to_lowercase()),
        ("=", Some(start)) => found.starts_with(start),
        _ => holds(found, relation, value),
    }
}

fn holds<T: Ord + ?Sized>(found: &T, relation: &str, value: &T) -> bool {
    match relation {
        "=" => found == value,
        "!=" => found != value,
        "<" => found < value,
        "<=" => found <= value,
        ">" => found > value,
        _ => found >= value,
    }
}

/// A word of the filter; what stood in quotes is never one of the language.
struct Word {
    text: String,
    quoted: bool,
}

impl Word {
    fn is(&self, text: &str) -> bool {
        !self.quoted && self.text == text
    }
}

type Words = std::iter::Peekable<std::vec::IntoIter<Word>>;

fn words(text: &str) -> Result<Vec<Word>, String> {
    let mut words = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else {
            return Ok(words);
        };
        let relations = ["!=", "<=", ">=", "<", ">", "=", ":", "(", ")"];
        if let Some(relation) = relations
            .iter()
            .find(|relation| rest.starts_with(**relation))
        {
            let text = (*relation).to_owned();
            words.push(Word {
                text,
                quoted: false,
            });
            rest = &rest[relation.len()..];
        } else if first == '"' || first == '\'' {
            let inner = &rest[1..];
            let Some(end) = inner.find(first) else {
                return Err(format!("the filter has a {first} without its end"));
            };
            words.push(Word {
                text: inner[..end].to_owned(),
                quoted: true,
            });
            rest = &inner[end + 1..];
        } else {
            // A time has colons, and a value stands behind a relation.
            let is_value = words.last().is_some_and(|word: &Word| {
                !word.quoted && [":", "=", "!=", "<", "<=", ">", ">="].contains(&word.text.as_str())
            });
            let is_end = |c: char| c.is_whitespace() || "!<>=()\"'".contains(c);
            let end = rest.find(|c: char| is_end(c) || (c == ':' && !is_value));
            let end = end.unwrap_or(rest.len()).max(first.len_utf8());
            words.push(Word {
                text: rest[..end].to_owned(),
                quoted: false,
            });
            rest = &rest[end..];
        }
    }
}

/// Terms one after another, all of which must hold.
fn filter(words: &mut Words, open: &mut Vec<()>) -> Result<Filter, String> {
    let mut filters = vec![any(words, open)?];
    while words.peek().is_some_and(|word| !word.is(")")) {
        filters.push(any(words, open)?);
    }
    Ok(joined(filters, Filter::All))
}

fn any(words: &mut Words, open: &mut Vec<()>) -> Result<Filter, String> {
    let mut filters = vec![all(words, open)?];
    while words.next_if(|word| word.is("OR")).is_some() {
        filters.push(all(words, open)?);
    }
    Ok(joined(filters, Filter::Any))
}

fn all(words: &mut Words, open: &mut Vec<()>) -> Result<Filter, String> {
    let mut filters = vec![one(words, open)?];
    while words.next_if(|word| word.is("AND")).is_some() {
        filters.push(one(words, open)?);
    }
    Ok(joined(filters, Filter::All))
}

fn joined(mut filters: Vec<Filter>, of: fn(Vec<Filter>) -> Filter) -> Filter {
    match filters.len() {
        1 => filters.remove(0),
        _ => of(filters),
    }
}

fn one(words: &mut Words, open: &mut Vec<()>) -> Result<Filter, String> {
    let Some(word) = words.next() else {
        return Err("the filter ends where a field such as state should be".to_owned());
    };
    let before_bracket = word.is("-") && words.peek().is_some_and(|next| next.is("("));
    if word.is("NOT") || before_bracket {
        return nested(words, open, |words, open| {
            Ok(Filter::Not(Box::new(one(words, open)?)))
        });
    }
    if word.is("(") {
        let filter = nested(words, open, filter)?;
        return match words.next() {
            Some(word) if word.is(")") => Ok(filter),
            _ => Err("the filter has a ( without its )".to_owned()),
        };
    }
    let (negated, field) = match word.text.strip_prefix('-') {
        Some(field) => (true, field.to_owned()),
        None => (false, word.text),
    };
    if !FIELDS.contains(&field.as_str()) && !field.starts_with("labels.") {
        return Err(format!(
            "the filter asks for the field {field:?}; known are {}",
            FIELDS.join(", ")
        ));
    }
    let relation = words.next().map(|word| word.text).unwrap_or_default();
    let relations = [":", "=", "!=", "<", "<=", ">", ">="];
    let Some(relation) = relations.into_iter().find(|known| *known == relation) else {
        return Err(format!(
            "after {field} the filter has {relation:?}; expected one of {}",
            relations.join(" ")
        ));
    };
    let Some(value) = words.next() else {
        return Err(format!("the filter has no value after {field}{relation}"));
    };
    let term = term(field, relation, value.text)?;
    Ok(if negated {
        Filter::Not(Box::new(term))
    } else {
        term
    })
}

fn term(field: String, relation: &'static str, value: String) -> Result<Filter, String> {
    if field == "labels" && relation != ":" {
        return Err(format!(
            "the filter has labels{relation}; expected labels:NAME, or labels.NAME{relation}VALUE"
        ));
    }
    let is_text = relation == ":" || (relation == "=" && value.ends_with('*'));
    if field == "state" && !is_text {
        check_state(&value)?;
    }
    if is_text || !TIMES.contains(&field.as_str()) {
        return Ok(Filter::Term {
            field,
            relation,
            value,
        });
    }
    match milliseconds(&value, now()) {
        Ok(value) => Ok(Filter::Time {
            field,
            relation,
            value,
        }),
        Err(why) => Err(format!("the filter asks for {field}{relation}: {why}")),
    }
}

/// No job has a state of another name, and a list that is empty would hide the slip.
fn check_state(value: &str) -> Result<(), String> {
    let states = State::ALL.map(State::name);
    if states.contains(&value) {
        return Ok(());
    }
    Err(format!(
        "the filter asks for the state {value:?}, which no job has; {}",
        suggest(value, &states)
    ))
}

fn nested(
    words: &mut Words,
    open: &mut Vec<()>,
    inner: impl FnOnce(&mut Words, &mut Vec<()>) -> Result<Filter, String>,
) -> Result<Filter, String> {
    if open.len() == DEEPEST {
        return Err(format!("the filter has brackets more than {DEEPEST} deep"));
    }
    open.push(());
    let filter = inner(words, open);
    open.pop();
    filter
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Whether filters take a job as these say.
    fn take(filters: &[(&str, bool)]) {
        let job = json!({
            "jobId": "rnn_1", "state": "FAILED", "createTime": "2026-11-22T10:00:00.000Z",
            "errorMessage": "chief-0 (rank 0) ended with exit code 1", "labels": {"team": "vision"}
        });
        for (filter, takes) in filters {
            let found = Filter::parse(filter).unwrap().takes(&job);
            assert_eq!(found, *takes, "{filter}");
        }
    }

    #[test]
    fn filters_take_what_they_say() {
        take(&[
            ("jobId:rnn*", true),
            ("jobId:rnn* AND state:FAILED", true),
            ("jobId=rnn", false),
            ("state=SUCCEEDED OR state=FAILED", true),
            ("state:SUCCEEDED jobId:rnn*", false),
            ("NOT state:FAILED", false),
            ("-state:FAILED OR labels.team=vision", true),
            ("state:SUCCEEDED labels.team=a OR labels.team=vision", false),
            (
                "state:SUCCEEDED AND labels.team=a OR labels.team=vision",
                true,
            ),
            ("labels.team=vision OR state:SUCCEEDED state:RUNNING", false),
            (
                "(state:SUCCEEDED labels.team=a) OR labels.team=vision",
                true,
            ),
            ("-(state:FAILED labels.team=vision)", false),
            ("-(state:RUNNING OR labels.team=a) AND jobId:rnn*", true),
            ("NOT -(state:FAILED)", true),
            ("labels:*", true),
            ("labels:team", true),
            ("-labels:owner", true),
            ("labels:vision", false),
            ("state:fail*", true),
            ("state=fail*", false),
            ("(state=RUNNING OR state=FAILED) AND (jobId!=x)", true),
            ("labels.none=x", false),
            ("jobId:*", true),
            ("labels.team:*", true),
            ("labels.none:*", false),
            ("labels.none!=x", true),
            ("NOT labels.none:*", true),
            ("errorMessage:\"exit code\"", true),
            ("errorMessage:EXIT", true),
            ("errorMessage=exit", false),
            ("state:fail", true),
        ]);
    }

    #[test]
    fn times_are_compared_as_times() {
        take(&[
            (
                "createTime>\"2026-11-01\" AND createTime < '2026-12-01T00:00:00Z'",
                true,
            ),
            ("endTime>2000-01-01", false),
            ("endTime!=2000-01-01", true),
            ("endTime:*", false),
            ("createTime:*", true),
            ("createTime=2026-11-22T12:00:00+02:00", true),
            ("createTime>=2026-11-22T12:00:00.001+02:00", false),
            ("createTime<=\"2026-11-22 10:00\"", true),
            ("createTime=2026-11-22*", true),
            ("createTime<P1W", true),
            (
                "createTime>2026-11-22T09:59:00 AND createTime<=2026-11-22T10:00:00.000Z",
                true,
            ),
            ("createTime>2026-11-22T10:07:00", false),
        ]);
    }

    #[test]
    fn what_is_no_filter_is_told() {
        for (filter, part) in [
            ("", "ends where"),
            ("stat:FAILED", "known are"),
            ("state", "expected one of"),
            ("state=", "no value"),
            ("(jobId=A", "without its )"),
            ("jobId=A)", "should end"),
            ("jobId=\"A", "without its end"),
            ("jobId=A AND", "ends where"),
            ("jobId=A OR OR state=B", "known are"),
            ("- jobId=A", "known are"),
            (
                "createTime>yesterday",
                "createTime>: \"yesterday\" is no time",
            ),
            ("endTime>2000", "is no time"),
            ("state=FALED", "did you mean `FAILED`?"),
            ("state!=failed", "which no job has; did you mean `FAILED`?"),
            ("labels=team", "expected labels:NAME"),
            (&"(".repeat(1000), "deep"),
            (&"NOT ".repeat(1000), "deep"),
            (&"-(".repeat(1000), "deep"),
        ] {
            let error = Filter::parse(filter).unwrap_err();
            assert!(error.contains(part), "{filter}: {error}");
        }
    }
}
