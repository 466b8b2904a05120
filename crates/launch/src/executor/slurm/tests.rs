//! What becomes of a job that Slurm has forgotten, and other looks at files.

use serde_json::json;

use super::*;
use crate::executor::{Job, RunArgs};
use crate::lifecycle::Submitted;
use crate::spec::{Plan, Source, Spec};
use crate::store::Store;
use crate::testing::{Scratch, submitted, written};

#[test]
fn a_task_has_no_place_before_its_line_is_whole() {
    let root = Scratch::new("slurm-place");
    for (text, place) in [("", None), ("n", None), ("n1\n", Some("node n1"))] {
        fs::write(root.0.join("worker-0.start"), text).unwrap();
        assert_eq!(node(&root.0, "worker-0").as_deref(), place, "{text:?}");
    }
}

/// A Slurm that knows no job, and leaves a file `submitted` when it is given one.
fn forgetful(root: &Path) -> PathBuf {
    let unknown = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1";
    let submitted = root.join("submitted");
    let submits = format!("echo x >{}; echo no >&2; exit 1", submitted.display());
    let all = [
        ("scontrol", unknown),
        ("squeue", "exit 0"),
        ("sbatch", &submits),
    ];
    tools(root, &all)
}

/// Commands of Slurm's as scripts.
fn tools(root: &Path, all: &[(&str, &str)]) -> PathBuf {
    let tools = root.join("bin");
    written(&tools, all);
    tools
}

/// A job of two tasks by Slurm, with these tools.
fn job(root: &Path, tools: &Path) -> (Job, Spec, Plan) {
    let phalanx = json!({"executor": "slurm", "workers": 2});
    let input = json!({"args": ["true"]});
    let source = json!({"trainingInput": input, "phalanx": phalanx});
    let spec = Spec::read(&Source::of_json(&source)).unwrap();
    let plan = Plan::new(&spec).unwrap();
    let job = Submitted {
        environment: [("PATH".to_owned(), tools.display().to_string())].into(),
        ..submitted(root, input, phalanx)
    };
    let store = Store::open(root).unwrap();
    let job = Job::new(store.clone(), store.create(job).unwrap());
    job.append(Event::Prepared).unwrap();
    (job, spec, plan)
}

/// How an attempt of a job ends.
fn attempt(
    attempt: u32,
    (job, spec, plan): (&Job, &Spec, &Plan),
    stop: &(dyn Fn() -> Option<Stop> + Sync),
) -> RunEnd {
    let run = Run {
        job,
        spec,
        plan,
        args: RunArgs::default(),
        attempt,
        restarts: attempt - 1,
        stop,
        started: &|| (),
    };
    run.run()
}

/// How the second attempt of a job ends whose first left these codes of its two tasks, and whether it was submitted again. The number of
/// the first was noted, or there is a mark.
fn after_slurm_forgot(codes: &[u8], noted: bool) -> (RunEnd, bool) {
    let root = Scratch::new("slurm-forgotten");
    let (job, spec, plan) = job(&root.0, &forgetful(&root.0));
    let folder = job.folder().join("slurm/1");
    fs::create_dir_all(folder.join("r0")).unwrap();
    for (code, task) in codes.iter().zip(&plan.tasks) {
        let file = |kind| folder.join("r0").join(format!("{}.{kind}", task.name()));
        fs::write(file("start"), "n1\n").unwrap();
        fs::write(file("exit"), format!("{code} 1795\n")).unwrap();
    }
    if noted {
        let (handle, trial) = (Some(format!("{HANDLE}7")), None);
        job.append(Event::Handle { handle, trial }).unwrap();
    } else {
        // One of long ago, whose `sbatch` is not on its way any more.
        unrecorded::mark(&folder).unwrap();
        let mark = fs::File::open(folder.join("mark")).unwrap();
        mark.set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    let end = attempt(2, (&job, &spec, &plan), &|| None);
    assert_eq!(job.life().unwrap().handle, None);
    assert!(!folder.join("mark").exists());
    (end, root.0.join("submitted").exists())
}

#[test]
fn a_job_that_slurm_has_forgotten_ended_as_its_files_say() {
    for noted in [true, false] {
        for codes in [[0, 0], [0, 1]] {
            let ended = after_slurm_forgot(&codes, noted);
            assert_eq!(ended, (RunEnd::Succeeded, false), "{codes:?}");
        }
        let (end, again) = after_slurm_forgot(&[3, 143], noted);
        let RunEnd::Failed(failure) = end else {
            panic!("{end:?}")
        };
        assert_eq!((failure.end.code, again), (Some(3), false));
    }
    let (end, again) = after_slurm_forgot(&[], true);
    let RunEnd::Lost(why) = end else {
        panic!("{end:?}")
    };
    assert!(why.contains("forgotten job 7") && !again, "{why}");
    let (end, again) = after_slurm_forgot(&[], false);
    assert!(matches!(end, RunEnd::Refused(_)) && again, "{end:?}");
}

#[test]
fn a_cancel_that_slurm_refuses_at_first_is_repeated() {
    let root = Scratch::new("slurm-cancel");
    let (refused, over) = (root.0.join("refused"), root.0.join("over"));
    let (refused, over) = (refused.display(), over.display());
    let ends = format!("[ -e {refused} ] || {{ echo >{refused}; exit 1; }}; echo >{over}");
    let shows = format!("[ -e {over} ] && echo JobState=CANCELLED || echo JobState=RUNNING");
    let all = [
        ("sbatch", "echo 7"),
        ("scontrol", &*shows),
        ("scancel", &*ends),
    ];
    let (job, spec, plan) = job(&root.0, &tools(&root.0, &all));
    let grace = Duration::from_secs(30);
    let end = attempt(1, (&job, &spec, &plan), &|| Some(Stop { grace }));
    assert_eq!(end, RunEnd::Stopped);
}

/// How a first attempt ends whose `sbatch` says this at its first try, and how often it was tried; `stop` hears how often it was until then.
fn after_a_failed_try(said: &str, stop: &(dyn Fn(usize) -> bool + Sync)) -> (RunEnd, usize) {
    let root = Scratch::new("slurm-again");
    // It takes so long that nothing of it is on its way any more.
    let sbatch = format!(
        "PATH=/usr/bin:/bin; cd '{}'; echo x >>tries
for word; do case $word in --output=*) folder=${{word#--output=}};; esac; done
touch -d @0 \"${{folder%/*}}/mark\"
[ $(wc -l <tries) -gt 1 ] || {{ echo '{said}' >&2; exit 1; }}; echo 7",
        root.0.display()
    );
    let unknown = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1";
    let all = [
        ("sbatch", &*sbatch),
        ("squeue", "exit 0"),
        ("scontrol", unknown),
    ];
    let (job, spec, plan) = job(&root.0, &tools(&root.0, &all));
    let tries = || {
        let tries = fs::read_to_string(root.0.join("tries")).unwrap_or_default();
        tries.lines().count()
    };
    let grace = Duration::ZERO;
    let wish = || stop(tries()).then_some(Stop { grace });
    let end = attempt(1, (&job, &spec, &plan), &wish);
    assert!(!job.folder().join("slurm/1/mark").exists());
    (end, tries())
}

#[test]
fn a_submission_that_does_not_reach_slurm_is_repeated() {
    let unreached =
        "Batch job submission failed: Unable to contact slurm controller (connect failure)";
    let (end, tries) = after_a_failed_try(unreached, &|_| false);
    let RunEnd::Lost(why) = end else {
        panic!("{end:?}")
    };
    assert!(why.contains("forgotten job 7") && tries == 2, "{why}");
    let stopped = after_a_failed_try(unreached, &|tries| tries > 0);
    assert_eq!(stopped, (RunEnd::Stopped, 1));
    let (end, tries) = after_a_failed_try("Invalid partition name specified", &|_| false);
    let RunEnd::Refused(why) = end else {
        panic!("{end:?}")
    };
    assert!(why.contains("Invalid partition") && tries == 1, "{why}");
}

#[test]
fn a_job_that_was_cancelled_in_slurm_is_not_submitted_again() {
    let ends = |state: &str, code: u8| {
        let root = Scratch::new("slurm-cancelled");
        let state = format!("echo JobState={state}");
        let (job, spec, plan) = job(&root.0, &tools(&root.0, &[("scontrol", &state)]));
        let folder = job.folder().join("slurm/1/r0");
        fs::create_dir_all(&folder).unwrap();
        for task in &plan.tasks {
            let file = |kind| folder.join(format!("{}.{kind}", task.name()));
            fs::write(file("start"), "n1\n").unwrap();
            fs::write(file("exit"), format!("{code} 1795\n")).unwrap();
        }
        let (handle, trial) = (Some(format!("{HANDLE}7")), None);
        job.append(Event::Handle { handle, trial }).unwrap();
        attempt(2, (&job, &spec, &plan), &|| None)
    };
    // The codes of tasks that saved, were killed, or lost another.
    for code in [0, 143, 137, 75] {
        let RunEnd::Refused(why) = ends("CANCELLED", code) else {
            panic!("it would be tried again after {code}");
        };
        assert!(why.contains("was cancelled in Slurm"), "{why}");
    }
    // Ends of their own are what ended the job.
    for (state, code) in [("CANCELLED", 1), ("FAILED", 143)] {
        let end = ends(state, code);
        let RunEnd::Failed(failure) = end else {
            panic!("{end:?}")
        };
        assert_eq!(failure.end.code, Some(code));
    }
}
