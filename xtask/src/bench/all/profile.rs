//! `cargo xtask bench profile`: where the processors are while a workload runs that misses a bar, by samples of Linux' `perf`.
//!
//! Samples are taken once a program has compiled. Kernels of ours have names, and oneDNN tells `perf` which memory its kernels are in. The plugin has a
//! oneDNN of its own, which begins the same file anew and so loses names; what is left without a name and without a file are those kernels and the loops that
//! XLA has compiled.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::super::bench_run::BenchRun;
use super::super::peer::Peer;
use super::super::{ROUND_LIMIT, StepBench, build, machine, parse_options};
use super::bars::Processor;
use super::page::{Page, WORKLOADS, with_section};
use super::{Timed, Workload, chosen, peer, workloads};
use crate::process::run;
use crate::workspace::Workspace;

const PAGE: &str = "bench/profiles.md";
/// Samples a second of each thread that runs: not a divisor of what is done regularly.
const FREQUENCY: u32 = 997;
const SECONDS: u32 = 10;
/// For programs of one budget to start and to compile.
const COMPILED_AFTER: Duration = Duration::from_secs(3);
/// For programs that are given one turn after another.
const SETTLED_AFTER: Duration = Duration::from_secs(6);
/// Between the turns of a program there is a pause.
const TURN: Duration = Duration::from_secs(2);
const PROCESSORS: f64 = 2.0;
/// Of the samples, what has less is one line.
const SHOWN: f64 = 0.01;

/// Code without a file and a name.
const UNNAMED: &str = "loops that XLA has compiled, and kernels of oneDNN whose names are lost";

const TITLE: &str = "# Where the time goes\n\n\
Written by `cargo xtask bench profile --write` for the workloads that miss a bar in [all.md](results/all.md). *Part* is the share of the samples of \
processors, of steps after the first ones; what has less than one in a hundred is under *others*. *Busy*: how much of both processors the program had; \
the rest of the time threads wait for each other. A name without more is a function of `crates/kernels` and what it calls inline.\n";

/// The samples of a program.
#[derive(Default)]
struct Profile {
    /// How many were taken in each place.
    places: BTreeMap<String, usize>,
    /// From the first to the last.
    seconds: f64,
}

/// Samples each workload that misses a bar, or the ones that `--only` names; prints the tables, and keeps them in `bench/profiles.md` if asked to.
pub(crate) fn profile(arguments: &[&str]) -> Result<(), String> {
    let options = parse_options(arguments)?;
    if options.write && !options.only.is_empty() {
        return Err(
            "found --write and --only, expected one: the page has all workloads that miss a bar"
                .into(),
        );
    }
    let processor = Processor::of_this_machine();
    let workloads = chosen(workloads(&processor), &options.only)?;
    let workspace = Workspace::load()?;
    build(&workspace)?;
    let page = Page::read(&workspace, &WORKLOADS, &processor)?;
    let wanted = |workload: &&Workload| !options.only.is_empty() || page.misses(&workload.shown);
    let mut text = String::new();
    for workload in workloads.iter().filter(wanted) {
        let table = table(&sampled(&workspace, workload)?);
        println!("{}\n\n{table}", workload.shown);
        text += &format!("### {}\n\n{table}\n", workload.shown);
    }
    if options.write {
        let path = workspace.root.join(PAGE);
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        let head = format!("## {}\n\n{}", processor.family, machine::description());
        let page = with_section(TITLE, &old, &format!("{head}\n\n{text}"));
        std::fs::write(&path, page).map_err(|error| format!("cannot write {PAGE}: {error}"))?;
    }
    Ok(())
}

fn sampled(workspace: &Workspace, workload: &Workload) -> Result<Profile, String> {
    let data = workspace.root.join("target/xtask/profile.data");
    let ours = |family| Peer {
        is_sampled: true,
        ..peer::ours(workspace, family)
    };
    match &workload.timed {
        Timed::Model(work) => {
            let started = work.start(workspace, &ours("models"), "");
            steps(workspace, started, &data)
        }
        Timed::Replicas(work) => {
            let started = work.start(workspace, &ours("scaling"), 2);
            steps(workspace, started, &data)
        }
        Timed::Single(_, work) => whole(workspace, &ours("single"), work, &data),
    }?;
    let mut script = perf(workspace);
    script
        .args(["script", "--fields", "time,ip,sym,dso", "--input"])
        .arg(&data);
    let lines = run(&mut script, &workspace.log("profile-script"), ROUND_LIMIT)?;
    Ok(counted(&lines))
}

fn counted(lines: &str) -> Profile {
    let mut profile = Profile::default();
    let (mut first, mut last) = (f64::INFINITY, 0.0_f64);
    for (time, place) in lines.lines().filter_map(sample) {
        *profile.places.entry(place).or_default() += 1;
        (first, last) = (first.min(time), last.max(time));
    }
    profile.seconds = (last - first).max(0.0);
    profile
}

fn perf(workspace: &Workspace) -> Command {
    let mut command = Command::new("perf");
    command.current_dir(&workspace.root);
    command
}

/// Takes steps for as long as samples are taken of the process.
fn steps(workspace: &Workspace, mut started: BenchRun, data: &Path) -> Result<(), String> {
    let Some(process) = started.process_id() else {
        return Err(format!("the program failed: {:?}", started.score.failure));
    };
    let mut count = 1;
    let mut turn = |started: &mut BenchRun| {
        let start = Instant::now();
        started.warm_up(count);
        if start.elapsed() < TURN {
            count *= 2;
        }
    };
    // A program still takes memory from the system in its first steps, and in the first that it takes without a pause.
    let start = Instant::now();
    while start.elapsed() < SETTLED_AFTER && started.process_id().is_some() {
        turn(&mut started);
    }
    let mut record = perf(workspace);
    let (process, frequency) = (process.to_string(), FREQUENCY.to_string());
    record.args([
        "record",
        "--event",
        "cpu-clock",
        "--freq",
        &frequency,
        "--pid",
        &process,
        "--output",
    ]);
    record.arg(data).args(["--", "sleep", &SECONDS.to_string()]);
    let recording = record.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut recording = recording
        .map_err(|error| format!("cannot start perf, of Debian's package linux-perf: {error}"))?;
    loop {
        turn(&mut started);
        match recording.try_wait().map_err(|error| error.to_string())? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => return Err(format!("perf record: {status}")),
            None if started.process_id().is_some() => {}
            None => return Err(format!("the program failed: {:?}", started.score.failure)),
        }
    }
}

/// Takes samples of a program that is given all its work at once, without its first seconds.
fn whole(workspace: &Workspace, ours: &Peer, work: &StepBench, data: &Path) -> Result<(), String> {
    let program = ours.command();
    let (frequency, delay) = (
        FREQUENCY.to_string(),
        COMPILED_AFTER.as_millis().to_string(),
    );
    // An epoch of `fit` takes a third of a second.
    let budget = match work.budget.ends_with('s') {
        true => format!("{}s", COMPILED_AFTER.as_secs() + u64::from(SECONDS)),
        false => (SECONDS * 4).to_string(),
    };
    let mut record = perf(workspace);
    record.args([
        "record",
        "--event",
        "cpu-clock",
        "--freq",
        &frequency,
        "--delay",
        &delay,
        "--output",
    ]);
    record.arg(data).arg("--").arg(program.get_program());
    record.args([work.model, work.batch, &budget]);
    record.envs(
        program
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    run(&mut record, &workspace.log("profile"), ROUND_LIMIT).map(drop)
}

/// The second of a line of `perf script` and where it was taken: a time, an address, a symbol and in brackets a file.
fn sample(line: &str) -> Option<(f64, String)> {
    let (time, rest) = line.trim().split_once(':')?;
    Some((time.parse().ok()?, place(rest)?))
}

fn place(line: &str) -> Option<String> {
    let (_, rest) = line.trim().split_once(' ')?;
    let (symbol, file) = rest.trim().rsplit_once(" (")?;
    let file = file.trim_end_matches(')');
    let named = symbol != "[unknown]";
    Some(match file {
        _ if file.contains("kernel.kallsyms")
            || file.starts_with("[k")
            || file.contains("vdso") =>
        {
            "Linux".into()
        }
        _ if file.contains("pjrt_c_api") => "XLA's own functions".into(),
        _ if file.contains("libdnnl") || (named && is_memory(file)) => "oneDNN".into(),
        _ if is_memory(file) => UNNAMED.into(),
        _ if file.contains("libc.so") && symbol.contains("mem") => "copies and zeros (libc)".into(),
        _ if file.contains("libc.so") => "libc".into(),
        _ => of_ours(symbol),
    })
}

/// Memory that has no file, or the map that says which kernel is in it.
fn is_memory(file: &str) -> bool {
    file.contains("anon") || file.contains("JIT") || file.contains("/perf-") || file == "[unknown]"
}

/// A function without its crate and without the names of its copies for instruction sets.
fn of_ours(symbol: &str) -> String {
    let name = symbol.trim_start_matches('<');
    let name = name.strip_prefix("phalanx_kernels::").unwrap_or(name);
    let copies = [
        "::with_avx512",
        "::with_avx2",
        "::wide",
        "::narrow",
        "::{{closure}}",
    ];
    let mut name = name.to_owned();
    while let Some(copy) = copies.iter().find(|copy| name.ends_with(**copy)) {
        name.truncate(name.len() - copy.len());
    }
    // A function of a trait: the type's own name and the function's.
    if let Some((of, function)) = name.split_once(" as ") {
        let of = of.split('<').next().unwrap_or(of);
        let last = |path: &str| path.rsplit("::").next().unwrap_or(path).to_owned();
        name = format!("{}::{}", last(of), last(function));
    }
    format!("`{name}`")
}

fn table(profile: &Profile) -> String {
    let all: usize = profile.places.values().sum();
    let part = |samples: usize| samples as f64 / all.max(1) as f64;
    let mut places: Vec<(&str, usize)> = (profile.places)
        .iter()
        .map(|(place, samples)| (place.as_str(), *samples))
        .collect();
    places.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
    let shown: Vec<_> = places
        .into_iter()
        .filter(|(_, samples)| part(*samples) >= SHOWN)
        .collect();
    let others = all - shown.iter().map(|(_, samples)| samples).sum::<usize>();
    let busy = all as f64 / f64::from(FREQUENCY) / profile.seconds / PROCESSORS;
    let mut text = format!(
        "Busy: {:.0} %.\n\n| part | where |\n|---:|---|\n",
        busy * 100.0
    );
    for (place, samples) in shown.into_iter().chain([("others", others)]) {
        text += &format!("| {:.1} % | {place} |\n", part(samples) * 100.0);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_the_names_of_who_owns_them() {
        for (line, expected) in [
            ("ffffffff8 clear_page_erms ([kernel.kallsyms])", "Linux"),
            (
                "7f3b5 [unknown] (/x/pjrt_c_api_cpu_plugin.so)",
                "XLA's own functions",
            ),
            ("7f3b5 jit_t (/tmp/perf-12.map)", "oneDNN"),
            (
                "7f3b5 dnnl::impl::run()::{lambda(int)#1}::operator() (/x/libdnnl.so.3)",
                "oneDNN",
            ),
            ("7f3b5 [unknown] (//anon)", UNNAMED),
            (
                "7f3b5 __memset_avx512 (/usr/lib/libc.so.6)",
                "copies and zeros (libc)",
            ),
            ("7f3b5 malloc (/usr/lib/libc.so.6)", "libc"),
            (
                "558 phalanx_kernels::gemm::pack (/x/bench-models)",
                "`gemm::pack`",
            ),
            (
                "558 phalanx_kernels::a::b::{{closure}}::wide (/x/bench-models)",
                "`a::b`",
            ),
            (
                "558 <alloc::vec::Vec<T> as alloc::vec::From<T,I>>::from_iter (/x/bench-models)",
                "`Vec::from_iter`",
            ),
        ] {
            assert_eq!(place(line).as_deref(), Some(expected), "{line}");
        }
        assert_eq!(place(""), None);
    }

    #[test]
    fn the_time_is_that_between_the_first_sample_and_the_last() {
        let lines = "  12.500000:  7f3b5 [unknown] (//anon)\n  13.000000:  7f3b5 malloc (/usr/lib/libc.so.6)\n\n  15.000000:  7f3b5 [unknown] (//anon)\n";
        let profile = counted(lines);
        assert_eq!(profile.seconds, 2.5);
        let expected = [("libc", 1), (UNNAMED, 2)];
        let expected = expected.map(|(place, count)| (place.to_owned(), count));
        assert_eq!(profile.places, BTreeMap::from(expected));
    }

    #[test]
    fn a_table_has_the_largest_parts_first_and_the_rest_in_a_line() {
        let samples = [("a", 5), ("b", 590), ("c", 400), ("d", 5)];
        let profile = Profile {
            places: samples
                .map(|(place, count)| (place.to_owned(), count))
                .into(),
            seconds: 10.0,
        };
        let text = table(&profile);
        let expected = "| 59.0 % | b |\n| 40.0 % | c |\n| 1.0 % | others |\n";
        assert!(
            text.ends_with(expected) && text.starts_with("Busy: 5 %"),
            "{text}"
        );
    }
}
