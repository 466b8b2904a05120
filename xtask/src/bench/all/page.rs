//! Tables by processor, such as the one in `bench/results/all.md` and in the README: a section for each family, of which a run renews its own.

use std::collections::BTreeMap;

use super::super::machine;
use super::super::score::Score;
use super::bars::Processor;
use super::row::HEADER;
use crate::workspace::Workspace;

const BEGIN: &str = "<!-- bench all: written by `cargo xtask bench all --write` -->";
const END: &str = "<!-- /bench all -->";
const SECTION: &str = "### ";
const VERSIONS: &str = "Versions: ";

const TITLE: &str = "# Every workload with its bar\n\n\
Written by `cargo xtask bench all --write`; `--only NAME` renews rows one after another. Medians of rounds in which the programs take turns, as in \
`bench models`, `bench single` and `bench scaling`; `1.55x` means that ours is 1.55 times as fast. Of each peer the fastest variant counts: PyTorch \
eager (channels-last) and compiled, TensorFlow as a graph and with XLA, JAX. A row with `quick` had two rounds, and of the peers only the \
variants that were first before: see `quick` in `xtask/src/bench/models.rs`. A first step traces and compiles; ours is cold with an empty cache of \
programs, cached in a second process. Memory is the most that a process had resident; \
`> 2900`, where a later step took too long, until the first had ended. Beside two replicas stands what two programs with one replica each do, \
which run at once and exchange nothing: processors of a virtual machine share more than it shows.\n\n";

/// What a table says besides its rows, and where it is kept.
pub(super) struct Sheet {
    pub(super) path: &'static str,
    pub(super) title: &'static str,
    /// The names of the columns, and the line below.
    pub(super) header: &'static str,
    /// Whether the README has the sections, too.
    pub(super) in_readme: bool,
}

/// Every workload that has a bar.
pub(super) const WORKLOADS: Sheet = Sheet {
    path: "bench/results/all.md",
    title: TITLE,
    header: HEADER,
    in_readme: true,
};

/// The sections by processor, and which one is this machine's.
pub(super) struct Page {
    sheet: &'static Sheet,
    sections: Vec<Section>,
    own: usize,
}

/// A family of processors, with the rows that were timed on it.
#[derive(Default)]
struct Section {
    family: String,
    machine: String,
    versions: BTreeMap<String, String>,
    rows: Vec<String>,
}

impl Page {
    /// What was written before, and a section for this processor.
    pub(super) fn read(
        workspace: &Workspace,
        sheet: &'static Sheet,
        processor: &Processor,
    ) -> Result<Self, String> {
        let text = match std::fs::read_to_string(workspace.root.join(sheet.path)) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("cannot read {}: {error}", sheet.path)),
        };
        Ok(Self::parse(&text, sheet, &processor.family))
    }

    fn parse(text: &str, sheet: &'static Sheet, family: &str) -> Self {
        let between = format!("\n{SECTION}");
        let parts = text.split(&between).skip(1);
        let mut sections: Vec<Section> = parts.map(Section::parse).collect();
        let known = sections.iter().position(|section| section.family == family);
        let own = known.unwrap_or_else(|| {
            sections.push(Section {
                family: family.to_owned(),
                ..Section::default()
            });
            sections.len() - 1
        });
        Self {
            sheet,
            sections,
            own,
        }
    }

    /// Puts a row into the section of this processor, in the place of an older one.
    pub(super) fn add(&mut self, row: &str, scores: &[Score]) {
        let section = &mut self.sections[self.own];
        section.machine = machine::description();
        for score in scores.iter().filter(|score| !score.version.is_empty()) {
            let (framework, version) = (score.framework.clone(), score.version.clone());
            section.versions.insert(framework, version);
        }
        let same = |old: &&mut String| key(old) == key(row);
        match section.rows.iter_mut().find(same) {
            Some(old) => row.clone_into(old),
            None => section.rows.push(row.to_owned()),
        }
    }

    /// What ours took for a workload on this processor, where it was timed.
    pub(super) fn milliseconds(&self, shown: &str) -> Option<f64> {
        let row = self.sections[self.own]
            .rows
            .iter()
            .find(|row| key(row) == shown)?;
        let ours = row.split('|').nth(2)?.trim();
        ours.strip_suffix(" ms")?.parse().ok()
    }

    /// Whether a workload misses a bar on this processor.
    pub(super) fn misses(&self, shown: &str) -> bool {
        let mut rows = self.sections[self.own].rows.iter();
        let row = rows.find(|row| key(row) == shown);
        row.is_some_and(|row| row.contains("| no: "))
    }

    /// Writes the page, and the sections between the README's markers.
    pub(super) fn write(&self, workspace: &Workspace) -> Result<(), String> {
        let of_all = |text: fn(&Section, &Sheet) -> String| {
            let sections = self.sections.iter();
            let sections: Vec<String> = sections.map(|one| text(one, self.sheet)).collect();
            sections.join("\n")
        };
        let put = |name: &str, text: String| {
            std::fs::write(workspace.root.join(name), text)
                .map_err(|error| format!("cannot write {name}: {error}"))
        };
        let page = format!("{}{}", self.sheet.title, of_all(Section::text));
        put(self.sheet.path, page)?;
        if !self.sheet.in_readme {
            return Ok(());
        }
        let readme = std::fs::read_to_string(workspace.root.join("README.md"))
            .map_err(|error| format!("cannot read README.md: {error}"))?;
        put(
            "README.md",
            between_markers(&readme, &of_all(Section::folded))?,
        )
    }
}

/// A text with other sections between the markers.
fn between_markers(readme: &str, sections: &str) -> Result<String, String> {
    let parts = readme.split_once(BEGIN).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(END)?;
        Some((before, after))
    });
    let (before, after) = parts.ok_or_else(|| {
        format!("README.md has no lines {BEGIN:?} and {END:?}; put them where the table belongs")
    })?;
    Ok(format!("{before}{BEGIN}\n\n{sections}\n{END}{after}"))
}

/// The page with a section in the place of the one with the same heading, or behind the others.
pub(super) fn with_section(title: &str, old: &str, section: &str) -> String {
    let heading = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let between = "\n## ";
    let mut sections: Vec<String> = old
        .split(between)
        .skip(1)
        .map(|text| format!("## {}", text.trim_end()))
        .collect();
    let same = |one: &&mut String| heading(one) == heading(section);
    match sections.iter_mut().find(same) {
        Some(one) => section.trim_end().clone_into(one),
        None => sections.push(section.trim_end().to_owned()),
    }
    format!("{title}\n{}\n", sections.join("\n\n"))
}

/// The workload of a row.
fn key(row: &str) -> &str {
    row.split('|').nth(1).unwrap_or_default().trim()
}

impl Section {
    fn parse(text: &str) -> Self {
        let mut lines = text.lines();
        let mut section = Self {
            family: lines.next().unwrap_or_default().to_owned(),
            ..Self::default()
        };
        for line in lines {
            if line.starts_with('|') {
                section.rows.push(line.to_owned());
            } else if let Some(versions) = line.strip_prefix(VERSIONS) {
                let words = versions.trim_end_matches('.').split(", ");
                let pairs = words.filter_map(|pair| pair.split_once(' '));
                section.versions = pairs.map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
            } else if !line.is_empty() {
                line.clone_into(&mut section.machine);
            }
        }
        // Those of the header.
        section.rows.drain(..section.rows.len().min(2));
        section
    }

    fn text(&self, sheet: &Sheet) -> String {
        let versions = self
            .versions
            .iter()
            .map(|(name, version)| format!("{name} {version}"));
        let versions: Vec<String> = versions.collect();
        format!(
            "{SECTION}{}\n\n{}\n{VERSIONS}{}.\n\n{}{}\n",
            self.family,
            self.machine,
            versions.join(", "),
            sheet.header,
            self.rows.join("\n")
        )
    }

    /// The same behind a line that says how many bars are met.
    fn folded(&self, sheet: &Sheet) -> String {
        let met = self.rows.iter().filter(|row| row.contains("| yes |"));
        let (met, all, text) = (met.count(), self.rows.len(), self.text(sheet));
        let body = text.split_once("\n\n").map_or("", |(_, body)| body);
        let family = &self.family;
        format!(
            "<details>\n<summary><b>{family}</b>: {met} of {all} workloads meet all their bars</summary>\n\n{body}\n</details>\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::peer_process::Hello;
    use super::*;

    fn score(framework: &str, version: &str) -> Score {
        Score::new(Hello {
            framework: framework.into(),
            version: version.into(),
            variant: String::new(),
        })
    }

    fn text(page: &Page) -> String {
        let sections = page.sections.iter();
        let sections: Vec<String> = sections.map(|one| one.text(&WORKLOADS)).collect();
        format!("{TITLE}{}", sections.join("\n"))
    }

    #[test]
    fn a_family_renews_its_rows_and_keeps_other_sections() {
        let mut page = Page::parse("", &WORKLOADS, "X");
        page.add("| a | 1 |", &[score("torch", "2"), score("tf", "3")]);
        page.add("| b | 2.5 ms | more |", &[]);
        let mut other = Page::parse(&text(&page), &WORKLOADS, "Y");
        other.add("| a | 9 |", &[]);
        let mut again = Page::parse(&text(&other), &WORKLOADS, "X");
        again.add("| a | 7 |", &[score("torch", "4")]);
        let found = text(&again);
        assert_eq!(found.matches(SECTION).count(), 2);
        let (x, y) = found.split_once("### Y").unwrap();
        assert!(x.contains("| a | 7 |\n| b | 2.5 ms | more |\n"), "{x}");
        assert!(x.contains("Versions: tf 3, torch 4."), "{x}");
        assert!(y.contains("| a | 9 |"), "{y}");
        let parsed = Page::parse(&found, &WORKLOADS, "X");
        assert_eq!(text(&parsed), found);
        assert_eq!(parsed.milliseconds("a"), None);
        assert_eq!(parsed.milliseconds("b"), Some(2.5));
    }

    #[test]
    fn a_folded_section_says_how_many_bars_are_met() {
        let mut page = Page::parse("", &WORKLOADS, "X");
        page.add("| a | 1 | yes |", &[]);
        page.add("| b | 2 | no: 1.1x |", &[]);
        let text = page.sections[0].folded(&WORKLOADS);
        assert!(
            text.starts_with("<details>\n<summary><b>X</b>: 1 of 2 "),
            "{text}"
        );
        assert!(
            text.ends_with("| a | 1 | yes |\n| b | 2 | no: 1.1x |\n\n</details>\n"),
            "{text}"
        );
    }

    #[test]
    fn the_readme_has_the_sections_between_its_markers() {
        let readme = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let found = between_markers(&readme, "new\n").unwrap();
        assert_eq!(found, format!("before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"));
        assert!(
            between_markers("nothing", "new")
                .unwrap_err()
                .contains("README.md has no lines")
        );
    }

    #[test]
    fn a_section_takes_the_place_of_its_own() {
        let first = with_section("T\n", "", "## X\n\na\n");
        let both = with_section("T\n", &first, "## Y\n\nb\n");
        let again = with_section("T\n", &both, "## X\n\nc\n");
        assert_eq!(again, "T\n\n## X\n\nc\n\n## Y\n\nb\n");
    }
}
