//! The check of dependencies: the rules of `deny.toml` about licences, bans and sources.
//!
//! The file is one that `cargo deny` reads too; only the keys below are known here, and any other is an error, so that
//! no rule is written that is not kept. Advisories need a network and a database: `cargo deny check advisories`.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::spdx;
use crate::workspace::{Package, Workspace};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
    #[serde(rename = "sources")]
    _sources: Sources,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Bans {
    #[serde(rename = "multiple-versions")]
    _multiple_versions: Deny,
    #[serde(rename = "wildcards")]
    _wildcards: Deny,
    /// Lets `path` dependencies of private crates do without a version.
    #[serde(rename = "allow-wildcard-paths")]
    _allow_wildcard_paths: bool,
    deny: Vec<Banned>,
    skip: Vec<Skipped>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Banned {
    name: String,
    reason: String,
}

/// A version that may be there beside another.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Skipped {
    /// `name` or `name@version`.
    #[serde(rename = "crate")]
    package: String,
    #[serde(rename = "reason")]
    _reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Sources {
    #[serde(rename = "unknown-registry")]
    _unknown_registry: Deny,
    #[serde(rename = "unknown-git")]
    _unknown_git: Deny,
}

/// The only level there is.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Deny {
    Deny,
}

pub(crate) fn check(workspace: &Workspace) -> Result<String, String> {
    let text = std::fs::read_to_string(workspace.root.join("deny.toml"))
        .map_err(|error| format!("cannot read deny.toml: {error}"))?;
    let rules: Rules = toml::from_str(&text).map_err(|error| format!("deny.toml: {error}"))?;
    let problems = [
        licences(&rules.licenses, &workspace.packages),
        banned(&rules.bans, &workspace.packages),
        duplicates(&rules.bans, &workspace.packages),
        unused_skips(&rules.bans, &workspace.packages),
        sources(&workspace.packages),
    ]
    .concat();
    if problems.is_empty() {
        Ok(format!("{} packages", workspace.packages.len()))
    } else {
        Err(problems.join("\n"))
    }
}

fn licences(rules: &Licenses, packages: &[Package]) -> Vec<String> {
    let problem = |package: &Package| {
        let Some(licence) = &package.license else {
            return Some("no licence is given".to_owned());
        };
        match spdx::satisfied(licence, &rules.allow) {
            Ok(true) => None,
            Ok(false) => Some(format!(
                "the licence {licence:?} is not among those that deny.toml allows"
            )),
            Err(problem) => Some(problem),
        }
    };
    let told = |package: &Package| {
        problem(package).map(|problem| format!("{}: {problem}; use another crate", shown(package)))
    };
    packages.iter().filter_map(told).collect()
}

fn banned(rules: &Bans, packages: &[Package]) -> Vec<String> {
    let rule = |package: &Package| rules.deny.iter().find(|banned| banned.name == package.name);
    let told = |package: &Package| {
        rule(package).map(|banned| format!("{}: banned, {}", shown(package), banned.reason))
    };
    packages.iter().filter_map(told).collect()
}

fn duplicates(rules: &Bans, packages: &[Package]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&Package>> = BTreeMap::new();
    for package in packages
        .iter()
        .filter(|package| !is_skipped(rules, package))
    {
        versions.entry(&package.name).or_default().push(package);
    }
    let several = versions.values().filter(|packages| packages.len() > 1);
    several
        .map(|packages| {
            let shown: Vec<String> = packages.iter().map(|package| shown(package)).collect();
            format!("{}: several versions; update what needs the older, or list it in bans.skip with a reason", shown.join(", "))
        })
        .collect()
}

fn unused_skips(rules: &Bans, packages: &[Package]) -> Vec<String> {
    let unused = |skip: &&Skipped| !packages.iter().any(|package| matches(skip, package));
    let told = |skip: &Skipped| {
        format!(
            "deny.toml: bans.skip lists {}, which nothing needs; remove it",
            skip.package
        )
    };
    rules.skip.iter().filter(unused).map(told).collect()
}

fn is_skipped(rules: &Bans, package: &Package) -> bool {
    rules.skip.iter().any(|skip| matches(skip, package))
}

fn matches(skip: &Skipped, package: &Package) -> bool {
    skip.package == package.name || skip.package == shown(package)
}

/// Packages come from the default registry with a version asked for, or from the workspace.
fn sources(packages: &[Package]) -> Vec<String> {
    let mut problems = Vec::new();
    for package in packages {
        if package
            .source
            .as_deref()
            .is_some_and(|source| !source.starts_with("registry+"))
        {
            problems.push(format!(
                "{}: comes from a repository; use a released version",
                shown(package)
            ));
        }
        for dependency in &package.dependencies {
            if dependency.registry.is_some() {
                problems.push(format!(
                    "{}: {} comes from another registry",
                    shown(package),
                    dependency.name
                ));
            }
            if package.source.is_none() && dependency.path.is_none() && dependency.req == "*" {
                problems.push(format!(
                    "{}: any version of {} will do; ask for one",
                    shown(package),
                    dependency.name
                ));
            }
        }
    }
    problems
}

fn shown(package: &Package) -> String {
    format!("{}@{}", package.name, package.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, licence: &str, source: &str) -> Package {
        serde_json::from_value(serde_json::json!({
            "name": name, "version": version, "license": licence, "source": source,
            "dependencies": [], "targets": [], "manifest_path": "/w/Cargo.toml",
        }))
        .unwrap()
    }

    fn rules() -> Rules {
        toml::from_str(
            "[licenses]\nallow = ['MIT']\n[sources]\nunknown-registry = 'deny'\nunknown-git = 'deny'\n\
             [bans]\nmultiple-versions = 'deny'\nwildcards = 'deny'\nallow-wildcard-paths = true\n\
             deny = [{ name = 'bad', reason = 'it is' }]\nskip = [{ crate = 'old@1.0.0', reason = 'waits' }]\n",
        )
        .unwrap()
    }

    #[test]
    fn each_rule_is_kept() {
        let rules = rules();
        let packages = [
            package("bad", "1.0.0", "MIT", "registry+r"),
            package("closed", "1.0.0", "Proprietary", "registry+r"),
            package("old", "1.0.0", "MIT", "registry+r"),
            package("old", "2.0.0", "MIT", "registry+r"),
            package("twice", "1.0.0", "MIT", "registry+r"),
            package("twice", "2.0.0", "MIT", "git+g"),
        ];
        assert_eq!(licences(&rules.licenses, &packages).len(), 1);
        assert_eq!(banned(&rules.bans, &packages), ["bad@1.0.0: banned, it is"]);
        assert!(
            duplicates(&rules.bans, &packages)[0].starts_with("twice@1.0.0, twice@2.0.0: several")
        );
        assert_eq!(duplicates(&rules.bans, &packages).len(), 1);
        assert_eq!(unused_skips(&rules.bans, &packages).len(), 0);
        assert_eq!(unused_skips(&rules.bans, &packages[..2]).len(), 1);
        assert_eq!(sources(&packages).len(), 1);
    }

    #[test]
    fn an_unknown_rule_is_an_error() {
        assert!(toml::from_str::<Rules>("[licenses]\nallow = []\ncopyleft = 'deny'\n").is_err());
    }
}
