//! Exchanges by Debian's Open MPI and MPICH, with ranks as processes of their launchers.
//!
//! The test program starts itself: with `MPI_TEST` set, `a_rank` is one rank, and does nothing otherwise.

use std::io::Write;
use std::process::{Command, Output, exit};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use phalanx_collectives::{
    Algorithm, AllReduce, CollectiveError, Communicator, CommunicatorOptions, Element, Mpi,
    MpiLaunch, ReduceOp, share,
};

/// What tells a rank what to do.
const TASK: &str = "MPI_TEST";
const RANKS: usize = 2;
/// Bytes of an array.
const LARGE: usize = 320 << 20;

/// A launcher, its name, and the package of Debian that has it.
struct Launcher {
    program: &'static str,
    package: &'static str,
}

const LAUNCHERS: [Launcher; 2] = [
    Launcher {
        program: "mpirun.openmpi",
        package: "openmpi-bin",
    },
    Launcher {
        program: "mpiexec.mpich",
        package: "mpich",
    },
];

impl Launcher {
    /// The job ended with the exit code of its ranks. MPICH's launcher says 1 or 9 instead where a rank that it ends as the other
    /// aborts is quicker (each seen once in some hundred runs, on a busy machine).
    fn says_75(&self, output: &Output, text: &str) {
        let code = output.status.code();
        let is_hydra = self.package == "mpich";
        assert!(
            code == Some(75) || (is_hydra && matches!(code, Some(1 | 9))),
            "{code:?} {text}"
        );
    }
}

/// Starts the ranks of a task; none where the launcher is not there. It has a folder of its own for temporary files: two of Open MPI's
/// that make their folder of the same name at once fail.
fn launch(launcher: &Launcher, task: &str, more: &[(&str, &str)]) -> Option<Output> {
    let folder = std::env::temp_dir().join(format!("phalanx-mpi-{task}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new("timeout");
    command.args(["300", launcher.program, "-n", &RANKS.to_string()]);
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "a_rank", "--nocapture"]);
    command
        .env(TASK, task)
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("TMPDIR", &folder);
    command.envs(more.iter().copied());
    let output = command.output().unwrap();
    let _ = std::fs::remove_dir_all(&folder);
    // What `timeout` says of a program that is not there.
    if output.status.code() == Some(127) {
        let Launcher { program, package } = launcher;
        let _ = writeln!(
            std::io::stderr(),
            "skipped: no {program}; it is in Debian's package {package}"
        );
        return None;
    }
    Some(output)
}

/// All that the ranks wrote.
fn text(output: &Output) -> String {
    let both = [&output.stdout, &output.stderr];
    both.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        .concat()
}

#[test]
fn values_are_those_of_ranks_in_one_process() {
    for launcher in &LAUNCHERS {
        let Some(output) = launch(launcher, "values", &[]) else {
            continue;
        };
        let text = text(&output);
        assert!(output.status.success(), "{text}");
        assert_eq!(text.matches("all equal").count(), RANKS, "{text}");
    }
}

#[test]
fn ranks_with_different_calls_are_told_and_the_job_ends_with_75() {
    for launcher in &LAUNCHERS {
        let Some(output) = launch(launcher, "mismatch", &[]) else {
            continue;
        };
        let text = text(&output);
        launcher.says_75(&output, &text);
        // The first rank that tells it ends the job, perhaps before the other one does.
        let told = |came: &str, has: &str| {
            let came = text.contains(&format!("came with all-reduce of {came} bytes"));
            came && text.contains(&format!("where this rank has all-reduce of {has} bytes"))
        };
        assert!(told("40", "80") || told("80", "40"), "{text}");
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_and_mpi_ends_the_job_with_75() {
    for launcher in &LAUNCHERS {
        let Some(output) = launch(launcher, "absent", &[]) else {
            continue;
        };
        let text = text(&output);
        launcher.says_75(&output, &text);
        let seconds = |rest: &str| rest.split_once(" s for rank 1 in ")?.0.parse::<f64>().ok();
        let waited = text.split("waited ").find_map(seconds);
        // It may be woken late.
        let is_right = |waited| (1.5..20.0).contains(&waited);
        assert!(waited.is_some_and(is_right), "{text}");
    }
}

/// The deadline is one of silence: how long a whole array takes does not count.
#[test]
fn a_large_array_may_take_longer_than_the_deadline() {
    for launcher in &LAUNCHERS {
        let Some(output) = launch(launcher, "large", &[]) else {
            continue;
        };
        let text = text(&output);
        assert!(output.status.success(), "{text}");
        assert_eq!(text.matches("all added").count(), RANKS, "{text}");
    }
}

#[test]
fn a_library_of_another_launcher_is_refused_by_name() {
    let others = ["libmpich.so.12", "libmpi.so.40"];
    for (launcher, library) in LAUNCHERS.iter().zip(others) {
        let more = [("PHALANX_MPI_LIBRARY", library)];
        let Some(output) = launch(launcher, "start", &more) else {
            continue;
        };
        let text = text(&output);
        let refused = text.contains("says that this is rank 0 of 1") && text.contains(library);
        let absent = text.contains(&format!("{library}: "));
        assert!(refused || absent, "{text}");
        assert!(!output.status.success());
    }
}

#[test]
fn a_rank() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let launch = MpiLaunch::find(|name| std::env::var(name).ok()).unwrap();
    let mpi = match Mpi::start(&launch, Duration::from_secs(120)) {
        Ok(mpi) => mpi,
        Err(error) => {
            println!("{error}");
            exit(1);
        }
    };
    match task.as_str() {
        "values" => values(mpi),
        "mismatch" => mismatch(mpi),
        "absent" => absent(mpi),
        "large" => large(mpi),
        "measure" => measure(mpi),
        _ => {}
    }
}

fn options() -> CommunicatorOptions {
    CommunicatorOptions {
        timeout: Duration::from_secs(120),
        ..CommunicatorOptions::default()
    }
}

fn ended(error: &CollectiveError) -> ! {
    println!("{error}");
    exit(75);
}

fn mismatch(mpi: &'static Mpi) {
    let group = Communicator::over_mpi(mpi, &options()).unwrap();
    let mut data = vec![0; 40 * (1 + group.rank())];
    if let Err(error) = group.all_reduce(&mut data, Element::F32, ReduceOp::Sum) {
        ended(&error);
    }
}

/// The other rank is there, and does not take part; this one waits for MPI to end the job.
fn absent(mpi: &'static Mpi) {
    let timeout = Duration::from_millis(1500);
    let options = CommunicatorOptions {
        timeout,
        ..options()
    };
    let group = Communicator::over_mpi(mpi, &options).unwrap();
    let mut data = vec![0; 1 << 20];
    if group.rank() == 0 {
        let error = group.all_reduce(&mut data, Element::F32, ReduceOp::Sum);
        println!("{}", error.unwrap_err());
        assert!(group.barrier().is_err());
    }
    std::thread::sleep(Duration::from_secs(50));
}

/// An array that takes longer than the deadline, since the second rank stands still most of the time, and never for long.
fn large(mpi: &'static Mpi) {
    let group = |algorithm| {
        let options = CommunicatorOptions {
            timeout: Duration::from_secs(4),
            algorithm,
            ..options()
        };
        (algorithm, Communicator::over_mpi(mpi, &options).unwrap())
    };
    // The ranks wait for each other here, where the deadline is longer than all pauses.
    let patient = Communicator::over_mpi(mpi, &options()).unwrap();
    let pauses = format!(
        "for i in $(seq 20); do kill -STOP {0}; sleep 0.3; kill -CONT {0}; sleep 0.01; done",
        std::process::id()
    );
    for (algorithm, group) in [Algorithm::Auto, Algorithm::Library].map(group) {
        let mut buffer = group.buffer(LARGE);
        let one = 1_f32.to_le_bytes();
        buffer.copy_from_slice(&one.repeat(LARGE / one.len()));
        patient.barrier().unwrap();
        let mut pausing = Command::new("sh");
        let is_paused = patient.rank() == 1;
        let pausing = is_paused.then(|| pausing.args(["-c", &pauses]).spawn().unwrap());
        let (tell, told) = channel();
        let request = AllReduce {
            buffer,
            element: Element::F32,
            op: ReduceOp::Sum,
        };
        let start = Instant::now();
        let done = move |result| tell.send(result).unwrap();
        group.start_all_reduce(group.reserve_tickets(1), request, Box::new(done));
        let sums = told.recv().unwrap().unwrap_or_else(|error| ended(&error));
        println!("{algorithm:?} took {:.2} s", start.elapsed().as_secs_f64());
        if let Some(mut pausing) = pausing {
            pausing.wait().unwrap();
        }
        assert!(sums.chunks(4).all(|sum| sum == 2_f32.to_le_bytes()));
    }
    patient.barrier().unwrap();
    println!("all added");
}

/// Elements of a rank: numbers of which few sums are exact.
fn elements(element: Element, rank: usize, count: usize) -> Vec<u8> {
    let value = |index: usize| ((index * 7919 + rank * 104_729 + 1) % 10_007) as f64 / 977.0 - 5.0;
    let bytes = |index: usize| match element {
        Element::F32 => (value(index) as f32).to_le_bytes().to_vec(),
        Element::F64 => value(index).to_le_bytes().to_vec(),
        Element::F16 => half::f16::from_f64(value(index)).to_le_bytes().to_vec(),
        Element::Bf16 => half::bf16::from_f64(value(index)).to_le_bytes().to_vec(),
        Element::Bool => vec![u8::from(!(index + rank).is_multiple_of(3))],
        _ => ((index * 0x1234_5677 + rank * 99) as u64).to_le_bytes()[..element.size()].to_vec(),
    };
    (0..count).flat_map(bytes).collect()
}

/// The same exchange by ranks that are threads, of which each returns what it has.
fn in_one_process<T: Send>(
    options: &CommunicatorOptions,
    exchange: impl Fn(&Communicator) -> T + Sync,
) -> Vec<T> {
    let group = Communicator::in_memory(RANKS, options).unwrap();
    std::thread::scope(|scope| {
        let start = |rank| {
            let exchange = &exchange;
            scope.spawn(move || exchange(&rank))
        };
        let ranks: Vec<_> = group.into_iter().map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn values(mpi: &'static Mpi) {
    let wire = |wire| CommunicatorOptions { wire, ..options() };
    let library = CommunicatorOptions {
        algorithm: Algorithm::Library,
        ..options()
    };
    for options in [options(), library, wire(Some(Element::Bf16))] {
        let group = Communicator::over_mpi(mpi, &options).unwrap();
        assert_eq!(group.size(), RANKS);
        assert!(group.library().unwrap().contains(mpi.name().as_str()));
        let same = |what: &str, exchange: &(dyn Fn(&Communicator) -> Vec<Vec<u8>> + Sync)| {
            let ours = exchange(&group);
            let theirs = in_one_process(&options, exchange);
            assert!(ours == theirs[group.rank()], "{what} of {options:?}");
        };
        let reductions = |count: usize, element: Element, op: ReduceOp| {
            same(&format!("{op} of {count} {element}"), &|rank| {
                let mut data = elements(element, rank.rank(), count);
                rank.all_reduce(&mut data, element, op).unwrap();
                let mut part = elements(element, rank.rank(), count);
                let own = rank.reduce_scatter(&mut part, element, op).unwrap();
                assert_eq!(own, share(count, RANKS, rank.rank()));
                let own = own.start * element.size()..own.end * element.size();
                vec![data, part[own].to_vec()]
            });
        };
        // More blocks than are under way at a time, so that their memory is used again.
        reductions(1_500_001, Element::F32, ReduceOp::Sum);
        for count in [0, 1, 1000, 70_001] {
            for element in Element::ALL {
                for op in ReduceOp::ALL.into_iter().filter(|op| op.takes(element)) {
                    reductions(count, element, op);
                }
            }
            same("gather", &|rank| {
                let data = elements(Element::F32, rank.rank(), count * (rank.rank() + 1));
                rank.all_gather(&data, Element::F32).unwrap()
            });
            same("broadcast", &|rank| {
                let mut data = elements(Element::U8, rank.rank(), count);
                rank.broadcast(1, &mut data).unwrap();
                vec![data]
            });
        }
        same("not a number", &|rank| {
            let values = [f32::NAN, 1.0].map(f32::to_le_bytes);
            let mut data = values[rank.rank()].repeat(5000);
            rank.all_reduce(&mut data, Element::F32, ReduceOp::Max)
                .unwrap();
            assert!(f32::from_le_bytes([data[0], data[1], data[2], data[3]]).is_nan());
            Vec::new()
        });
        handed_over(&group);
        group.barrier().unwrap();
    }
    println!("all equal");
}

/// Exchanges that are handed over in another order on each rank.
fn handed_over(group: &Communicator) {
    let (done, results) = channel();
    let first = group.reserve_tickets(4);
    for index in 0..4 {
        let index = if group.rank() == 0 { index } else { 3 - index };
        let mut buffer = group.buffer(400_000);
        buffer.fill(index as u8 + 1);
        let request = AllReduce {
            buffer,
            element: Element::U8,
            op: ReduceOp::Sum,
        };
        let done = done.clone();
        let answer = move |result: Result<phalanx_collectives::Buffer, _>| {
            done.send((index, result.unwrap()[399_999])).unwrap();
        };
        group.start_all_reduce(first + index, request, Box::new(answer));
    }
    let results: Vec<_> = (0..4).map(|_| results.recv().unwrap()).collect();
    assert_eq!(results, [(0, 2), (1, 4), (2, 6), (3, 8)]);
}

/// Prints the times of exchanges beside those of the library's own calls, in turns.
fn measure(mpi: &'static Mpi) {
    let library = CommunicatorOptions {
        algorithm: Algorithm::Library,
        ..options()
    };
    let ours = Communicator::over_mpi(mpi, &options()).unwrap();
    let library = Communicator::over_mpi(mpi, &library).unwrap();
    for count in [256, 16 << 10, 256 << 10, 4 << 20, 25_000_000] {
        let mut times = [const { Vec::new() }; 4];
        let mut buffer = ours.buffer(count * 4);
        let mut data = vec![1f32; count];
        let runs = (20_000_000 / count).clamp(15, 5000);
        for _ in 0..runs {
            for (kind, times) in times.iter_mut().enumerate() {
                ours.barrier().unwrap();
                let start = Instant::now();
                match kind {
                    0 => mpi.bare_sum(&mut data, false).unwrap(),
                    1 => mpi.bare_sum(&mut data, true).unwrap(),
                    _ => {
                        let group = if kind == 2 { &ours } else { &library };
                        let sum = ReduceOp::Sum;
                        group
                            .all_reduce_buffer(&mut buffer, Element::F32, sum)
                            .unwrap();
                    }
                }
                times.push(start.elapsed());
            }
        }
        let median = times.map(|mut times| {
            times.sort();
            times[times.len() / 2].as_secs_f64() * 1e6
        });
        if ours.rank() == 0 {
            let [blocking, spinning, ours, library] = median;
            println!(
                "{} bytes: MPI_Allreduce {blocking:.1} us, MPI_Iallreduce {spinning:.1} us, ours {ours:.1} us, ours by the library's all-reduce {library:.1} us",
                count * 4
            );
        }
    }
}
