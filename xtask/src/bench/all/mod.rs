//! `cargo xtask bench all`: every workload that has a bar, ours beside the best variant of each peer, in one table.
//!
//! A workload is timed as `bench models`, `bench single` and `bench scaling` time it. With `--write` each row goes into the table of this
//! machine's processor in `bench/results/all.md` and in the README as soon as it is there; rows that are not timed stay.

mod bars;
mod breadth;
mod cache;
mod limits;
mod page;
mod profile;
mod row;

use super::models::{self, ModelCase};
use super::peer::{self, Peer};
use super::scaling::{self, ScalingCase};
use super::table::Results;
use super::{Options, SINGLE, StepBench, build, parse_options, time};
use crate::workspace::Workspace;
use bars::{Bar, Processor};
pub(crate) use breadth::breadth;
use cache::EmptyCache;
pub(crate) use limits::limits;
use page::{Page, WORKLOADS};
pub(crate) use profile::profile;
use row::Measured;

/// What is timed, and how.
enum Timed {
    Model(&'static ModelCase),
    Single(usize, &'static StepBench),
    Replicas(&'static ScalingCase),
}

/// A row of the table.
struct Workload {
    name: String,
    shown: String,
    bars: Vec<Bar>,
    timed: Timed,
}

/// Programs and how often they take their turns.
struct WorkloadBench {
    workspace: Workspace,
    models: Vec<Peer>,
    single: Vec<Peer>,
    scaling: Vec<Peer>,
    cache: EmptyCache,
    quick: bool,
}

/// Times ours and what the Pythons have, workload by workload; an error at the end names those that gave no row.
pub(crate) fn all(arguments: &[&str]) -> Result<(), String> {
    let options = parse_options(arguments)?;
    let processor = Processor::of_this_machine();
    let workloads = chosen(workloads(&processor), &options.only)?;
    let workspace = Workspace::load()?;
    build(&workspace)?;
    let mut page = Page::read(&workspace, &WORKLOADS, &processor)?;
    let bench = WorkloadBench::new(workspace, &options)?;
    let mut incomplete = Vec::new();
    for workload in &workloads {
        let measured = bench.time(workload);
        let row = row::text(workload, &measured, &bench.rounds());
        println!("{row}");
        if !measured.is_complete() {
            incomplete.push(workload.name.clone());
        }
        page.add(&row, &measured.scores);
        if options.write {
            page.write(&bench.workspace)?;
        }
    }
    if incomplete.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{} of {} workloads have programs that failed: {}; see target/xtask/bench-*.log",
        incomplete.len(),
        workloads.len(),
        incomplete.join(", ")
    ))
}

/// Every workload with the bars that hold on a processor.
fn workloads(processor: &Processor) -> Vec<Workload> {
    let row = |name: &str, batch: &str, shown: String, timed| Workload {
        name: name.to_owned(),
        shown,
        bars: bars::of(name, batch, processor),
        timed,
    };
    let models = models::WORKS.iter();
    let models = models.map(|work| {
        row(
            work.name,
            work.batch,
            work.shown.to_owned(),
            Timed::Model(work),
        )
    });
    let single = SINGLE.iter().enumerate();
    // The CNN is among the models.
    let single = single.filter(|(_, work)| work.model != "cnn");
    let single = single.map(|(index, work)| {
        let timed = Timed::Single(index, work);
        row(work.model, work.batch, work.shown.to_owned(), timed)
    });
    let replicas = scaling::WORKS.iter().map(|work| {
        let (name, batch) = (format!("replicas_{}", work.model), work.batch.to_string());
        let shown = format!("two replicas, {}, batch {batch} each, f32", work.shown);
        row(&name, &batch, shown, Timed::Replicas(work))
    });
    models.chain(single).chain(replicas).collect()
}

fn chosen(all: Vec<Workload>, only: &[String]) -> Result<Vec<Workload>, String> {
    for name in only {
        if all.iter().all(|workload| workload.name != *name) {
            let mut names: Vec<&str> = all.iter().map(|workload| workload.name.as_str()).collect();
            names.dedup();
            let names = names.join(", ");
            return Err(format!("found no workload {name:?}, expected {names}"));
        }
    }
    let is_chosen = |workload: &Workload| only.is_empty() || only.contains(&workload.name);
    Ok(all.into_iter().filter(is_chosen).collect())
}

impl WorkloadBench {
    fn new(workspace: Workspace, options: &Options) -> Result<Self, String> {
        let cache = EmptyCache::make(&workspace)?;
        let peers = |family| {
            let mut peers = peer::all(&workspace, family, &options.pythons)?;
            peers[0].cache = Some(cache.folder().to_owned());
            Ok::<_, String>(peers)
        };
        Ok(Self {
            models: peers("models")?,
            single: peers("single")?,
            scaling: peers("scaling")?,
            cache,
            quick: options.quick,
            workspace,
        })
    }

    fn rounds(&self) -> String {
        match self.quick {
            true => format!("{}, quick", self.count()),
            false => self.count().to_string(),
        }
    }

    const fn count(&self) -> usize {
        if self.quick { 2 } else { 5 }
    }

    /// All rounds of a workload; what failed says so in its score.
    fn time(&self, workload: &Workload) -> Measured {
        let emptied = self.cache.empty();
        let measured = match &workload.timed {
            Timed::Model(work) => Ok(self.time_model(work)),
            Timed::Single(index, work) => self.time_single(*index, work),
            Timed::Replicas(work) => {
                let count = self.count();
                let scores = scaling::time_all(&self.workspace, work, &self.scaling, count, true);
                Ok(Measured {
                    gain: scaling::gain(&scores),
                    gain_apart: scaling::gain_apart(&scores),
                    scores: scaling::of_replicas(scores),
                    ..Measured::default()
                })
            }
        };
        let failed = |why| Measured {
            failure: Some(why),
            ..Measured::default()
        };
        emptied.and(measured).unwrap_or_else(failed)
    }

    /// The first step of ours is cold here; a second process finds its program in the cache.
    fn time_model(&self, work: &ModelCase) -> Measured {
        let count = self.count();
        let scores = models::time_all(&self.workspace, work, &self.models, count, self.quick);
        let again = work.start(&self.workspace, &self.models[0], "");
        Measured {
            cached_ms: again.score.first_ms,
            scores,
            ..Measured::default()
        }
    }

    fn time_single(&self, index: usize, work: &StepBench) -> Result<Measured, String> {
        let budget = work.budget(self.quick).unwrap_or(work.budget);
        let mut results = Results::default();
        let mut failure = None;
        for round in 1..=self.count() {
            for peer in &self.single {
                eprintln!("round {round}: {}, {}", peer.name, work.shown);
                let timed = time(&self.workspace, peer, work, budget);
                let added = timed.and_then(|output| results.add(index, &output));
                failure = failure.or(added.err());
            }
        }
        Ok(Measured {
            scores: results.scores(index),
            failure,
            ..Measured::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_has_a_bar_and_a_row_of_its_own() {
        let all = workloads(&Processor::default());
        let mut shown: Vec<&str> = all.iter().map(|one| one.shown.as_str()).collect();
        shown.sort_unstable();
        shown.dedup();
        assert_eq!(shown.len(), all.len());
        for workload in &all {
            assert!(!workload.bars.is_empty(), "{}", workload.name);
            assert!(!workload.shown.contains('|'), "{}", workload.shown);
        }
    }

    #[test]
    fn workloads_are_chosen_by_name() {
        let named = |name: &str| chosen(workloads(&Processor::default()), &[name.to_owned()]);
        assert_eq!(named("predict_resnet50").unwrap().len(), 3);
        assert_eq!(named("replicas_mlp").unwrap().len(), 2);
        let unknown = named("vgg").err().unwrap();
        assert!(
            unknown.contains("\"vgg\", expected resnet50, resnet50_bf16"),
            "{unknown}"
        );
    }
}
