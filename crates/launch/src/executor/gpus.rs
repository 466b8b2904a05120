//! The GPUs of this machine that a job may use, and what each of its tasks sees of them.
//!
//! A job's own word, in CUDA_VISIBLE_DEVICES of its file or its submission, stands, but for what is surely another job's. Names are compared
//! where they are of one kind, and numbers where both count in the same order; nothing is guessed of others.

use phalanx_cluster::launch::{VISIBLE_GPUS, driver_gpus, is_gpu, visible_gpus};
use serde::{Deserialize, Serialize};

use super::Run;
use super::variables::Variables;

/// The variable that says what the numbers in CUDA_VISIBLE_DEVICES count.
const ORDER: &str = "CUDA_DEVICE_ORDER";
/// The order in which NVIDIA's driver and its tools count.
const OF_DRIVER: &str = "PCI_BUS_ID";
/// The order in which CUDA counts without a word of it.
const OF_CUDA: &str = "FASTEST_FIRST";

/// GPUs of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpus {
    /// Their names, as CUDA_VISIBLE_DEVICES has them.
    pub names: Vec<String>,
    /// What numbers among the names count, as CUDA_DEVICE_ORDER has it.
    pub order: String,
    /// Whether the job has them for itself, to divide among its tasks. Else they are what other jobs have left, and all tasks see all.
    pub are_own: bool,
    /// What others have, where they are not the job's own.
    #[serde(default)]
    pub held: Held,
    /// Whether a list names them; else they are all that NVIDIA's driver has.
    #[serde(default)]
    pub are_listed: bool,
}

/// What jobs have for themselves of a machine's GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Held {
    /// Nothing.
    #[default]
    Nothing,
    /// These, of the machine's list.
    These(Vec<String>),
    /// Nobody knows which, and so it may be any.
    Any,
}

impl Gpus {
    /// The GPUs that jobs of this machine may be given: those that are `given`, those that CUDA_VISIBLE_DEVICES of this process names, or all.
    /// `None` where nothing names any and NVIDIA's driver has none.
    #[must_use]
    pub fn of_machine(given: Option<&str>) -> Option<Self> {
        let variable = std::env::var(VISIBLE_GPUS).ok();
        let is_of_cuda = given.is_none() && variable.is_some();
        let list = given.or(variable.as_deref());
        let mut names: Vec<String> = Vec::new();
        for name in visible_gpus(list) {
            // A GPU that has two names would be given twice.
            if names.iter().all(|other| are_apart(&name, other)) {
                names.push(name);
            }
        }
        // Other lists have the driver's numbers, as its tools show them.
        let order = match is_of_cuda {
            true => std::env::var(ORDER).unwrap_or_else(|_| OF_CUDA.to_owned()),
            false => OF_DRIVER.to_owned(),
        };
        (list.is_some() || !names.is_empty()).then_some(Self {
            names,
            order,
            are_own: false,
            held: Held::Nothing,
            are_listed: list.is_some(),
        })
    }

    /// Takes a list of GPUs for jobs, as [`Gpus::of_machine`] is given it.
    ///
    /// # Errors
    /// It names what is no GPU, one that NVIDIA's driver does not have, or some by numbers and some by UUIDs.
    pub fn listed(list: &str) -> Result<String, String> {
        Self::listed_of(list, driver_gpus()).map(|()| list.to_owned())
    }

    /// The same on a machine whose driver has this number of GPUs; without a driver nothing is known of numbers.
    fn listed_of(list: &str, there: usize) -> Result<(), String> {
        if list.trim() == "-1" {
            return Ok(());
        }
        let names = list.split(',').map(str::trim);
        let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        for (at, name) in names.iter().enumerate() {
            if !is_gpu(name) {
                return Err(format!(
                    "{name:?} names no GPU: write numbers, as 0,1, or UUIDs, as GPU-…, as `nvidia-smi -L` shows them; -1 is none"
                ));
            }
            if there > 0 && name.parse().is_ok_and(|number: usize| number >= there) {
                return Err(format!(
                    "this machine has no GPU {name}: it has {there}, from 0; the list has names of GPUs, not their number"
                ));
            }
            if let Some(other) = names[..at].iter().find(|other| !are_apart(name, other)) {
                return Err(format!(
                    "{other} and {name} may be one GPU: write each once, and all by numbers or all by whole UUIDs"
                ));
            }
        }
        Ok(())
    }

    /// Whether a job's own names are of this list, so that who has which is known.
    #[must_use]
    pub fn know(&self, own: &Self) -> bool {
        let is_known = |name| self.names.contains(name) && self.is_order(&own.names, &own.order);
        own.names.iter().all(is_known)
    }

    /// Whether names count as these do: by UUIDs, or in this order.
    fn is_order(&self, names: &[String], order: &str) -> bool {
        self.order == order || !names.iter().any(|name| is_number(name))
    }

    /// What a task sees that is given nothing of its own, and what is to be said of it. Where its variables stand as they are, that is `None`.
    fn left(&self, variables: &Variables) -> (Option<Vec<String>>, Option<String>) {
        let list = variables
            .get(VISIBLE_GPUS)
            .map(|list| visible_gpus(Some(list)));
        if list.as_ref().is_some_and(Vec::is_empty) {
            return (None, None);
        }
        let stands = list.is_some() || !self.are_listed;
        let held = match &self.held {
            Held::Nothing if stands => return (None, None),
            Held::Any if list.is_some() => {
                let why = "the job's variables say which GPUs it sees, and some may be those of a job of which it is not known which it has; ask for a number of GPUs by phalanx.gpus";
                return (None, Some(why.to_owned()));
            }
            Held::Any => {
                let why = "the job sees no GPU: another has some of which it is not known which they are, until its end; phalanx.gpus waits for that";
                return (Some(Vec::new()), Some(why.to_owned()));
            }
            Held::Nothing => &[],
            Held::These(held) => held.as_slice(),
        };
        let names = list.as_ref().unwrap_or(&self.names);
        let order = match &list {
            Some(_) => variables.get(ORDER).map_or(OF_CUDA, String::as_str),
            // The names are of this list, and tasks are given its order with them.
            None => &self.order,
        };
        let is_compared = (self.is_order(names, order) || driver_gpus() == 1)
            && names.iter().all(|name| {
                held.iter()
                    .all(|held| held == name || are_apart(name, held))
            });
        if !is_compared {
            let why = format!(
                "the job's variables say which GPUs it sees, and some may be other jobs', which have {} by {}; ask for a number of GPUs by phalanx.gpus",
                held.join(","),
                self.order
            );
            return (None, (!held.is_empty()).then_some(why));
        }
        let left: Vec<String> = names
            .iter()
            .filter(|name| !held.contains(name))
            .cloned()
            .collect();
        let why = left.is_empty().then(|| match held {
            [] => format!("the job sees no GPU: {NONE}"),
            held => format!(
                "the job sees no GPU: other jobs have {}; phalanx.gpus waits for some",
                held.join(",")
            ),
        });
        (Some(left), why)
    }
}

/// What is said where jobs have no GPU.
const NONE: &str = "this machine has none for jobs; `phalanx jobs serve --gpus`, PHALANX_JOBS_GPUS or CUDA_VISIBLE_DEVICES of the command that starts the daemon name them";

fn is_number(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_digit())
}

/// Whether two names are surely of two GPUs: two numbers, or two UUIDs of one kind of which none begins the other.
fn are_apart(one: &str, other: &str) -> bool {
    match (is_number(one), is_number(other)) {
        (true, true) => one != other,
        (false, false) => {
            let is_of_kind = one.get(..4) == other.get(..4);
            is_of_kind && !one.starts_with(other) && !other.starts_with(one)
        }
        _ => false,
    }
}

/// What the tasks of a run see of the machine's GPUs.
#[derive(Debug, Default)]
pub(super) struct TaskGpus {
    /// By place in the plan; nothing where the variables of the job stand as they are.
    of_tasks: Vec<Vec<String>>,
    order: String,
    /// Whether tasks have GPUs, and no two see the same.
    pub(super) are_own: bool,
    /// What the job's log is to say of them.
    pub(super) note: Option<String>,
}

impl TaskGpus {
    /// Of a run whose job was submitted with these variables.
    ///
    /// # Errors
    /// There are fewer GPUs than tasks that ask for some, or the job counts them otherwise.
    pub(super) fn of(run: &Run<'_>, submitted: &Variables) -> Result<Self, String> {
        let own = &run.spec.ours.env;
        if own.contains_key(VISIBLE_GPUS) {
            return Ok(Self::default());
        }
        let asked = run.plan.gpus();
        let gpus = run.job.gpus();
        let is_without = gpus.is_none_or(|gpus| gpus.are_own && gpus.names.is_empty());
        let note = (asked > 0 && is_without)
            .then(|| format!("the job asks for {asked} GPUs, and runs without: {NONE}"));
        let Some(gpus) = gpus else {
            return Ok(Self {
                note,
                ..Self::default()
            });
        };
        if gpus.are_own {
            return Self::divided(run, gpus, note);
        }
        let mut variables = submitted.clone();
        variables.extend(own.clone());
        let (left, note) = gpus.left(&variables);
        Ok(Self {
            of_tasks: left.map_or_else(Vec::new, |left| vec![left; run.plan.tasks.len()]),
            order: gpus.order.clone(),
            are_own: false,
            note,
        })
    }

    /// The GPUs of a job that has them for itself, divided.
    fn divided(run: &Run<'_>, gpus: &Gpus, note: Option<String>) -> Result<Self, String> {
        let given = run.spec.ours.env.get(ORDER);
        if let Some(given) = given.filter(|given| !gpus.is_order(&gpus.names, given)) {
            return Err(format!(
                "phalanx.env.{ORDER} is {given}, and the GPUs of this machine are counted by {}; remove it from the job file",
                gpus.order
            ));
        }
        Ok(Self {
            of_tasks: divided(run, &gpus.names)?,
            order: gpus.order.clone(),
            are_own: !gpus.names.is_empty(),
            note,
        })
    }

    /// The GPUs of a task that are no other task's.
    pub(super) fn own(&self, at: usize) -> &[String] {
        let own = self.of_tasks.get(at).filter(|_| self.are_own);
        own.map_or(&[], Vec::as_slice)
    }

    /// The same for an engine of containers. Where that gives them, it counts as NVIDIA's driver does.
    ///
    /// # Errors
    /// They have numbers of another order.
    pub(super) fn of_container(&self, at: usize, engine: &str) -> Result<&[String], String> {
        let own = self.own(at);
        let are_numbers = own.iter().any(|name| is_number(name));
        if engine == "apptainer" || !are_numbers || self.order == OF_DRIVER {
            return Ok(own);
        }
        Err(format!(
            "{engine} takes GPUs by UUID or by the driver's numbers, and the daemon's are counted by {}; start it with {ORDER}={OF_DRIVER}, or name UUIDs by `phalanx jobs serve --gpus`",
            self.order
        ))
    }

    /// The variables of a task by which it sees its GPUs. UUIDs need no order.
    pub(super) fn variables(&self, at: usize) -> Variables {
        let Some(own) = self.of_tasks.get(at) else {
            return Variables::new();
        };
        let order = own.iter().any(|name| is_number(name));
        let order = order.then(|| (ORDER.to_owned(), self.order.clone()));
        let visible = (VISIBLE_GPUS.to_owned(), own.join(","));
        [visible].into_iter().chain(order).collect()
    }

    /// Whether a variable names GPUs by the numbers of this machine, which are others in a container that has some of them.
    pub(super) fn is_of_machine(&self, variable: &str) -> bool {
        !self.of_tasks.is_empty() && [VISIBLE_GPUS, ORDER].contains(&variable)
    }
}

/// The GPUs of each task, none of them another task's, nor one of another lane.
fn divided(run: &Run<'_>, names: &[String]) -> Result<Vec<Vec<String>>, String> {
    let (number, of) = run
        .args
        .lane
        .map_or((0, 1), |lane| (lane.number, lane.of.max(1)));
    let each = names.len() / of;
    let mut own = names.iter().skip(number * each).take(each).cloned();
    let counts = run.plan.gpus_of_tasks(each)?;
    Ok(counts
        .into_iter()
        .map(|count| own.by_ref().take(count).collect())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &str) -> Vec<String> {
        visible_gpus(Some(names))
    }

    #[test]
    fn what_a_job_says_itself_stands_but_for_what_is_surely_others() {
        let left = |visible: Option<&str>, order: Option<&str>, held: &str, are_listed: bool| {
            let gpus = Gpus {
                names: list("0,1"),
                order: OF_DRIVER.to_owned(),
                are_own: false,
                held: match held {
                    "" => Held::Nothing,
                    "any" => Held::Any,
                    held => Held::These(list(held)),
                },
                are_listed,
            };
            let given = [(VISIBLE_GPUS, visible), (ORDER, order)].into_iter();
            let given =
                given.filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
            let (left, note) = gpus.left(&given.collect());
            (left.map(|left| left.join(",")), note.unwrap_or_default())
        };
        let nothing = String::new;
        assert_eq!(left(None, None, "", false), (None, nothing()));
        let all = Some("0,1".to_owned());
        assert_eq!(left(None, None, "2", false), (all.clone(), nothing()));
        // Its own order is of numbers that it does not say.
        assert_eq!(left(None, Some(OF_CUDA), "2", true), (all, nothing()));
        let driver = Some(OF_DRIVER);
        for (visible, order, held, sees, said) in [
            (None, None, "", Some("0,1"), ""),
            (None, Some(OF_CUDA), "", Some("0,1"), ""),
            (Some("3"), driver, "any", None, "some may be those of a job"),
            (Some("5"), None, "", None, ""),
            (Some(""), None, "2", None, ""),
            (Some("2,7"), driver, "2", Some("7"), ""),
            (
                Some("2"),
                driver,
                "2",
                Some(""),
                "no GPU: other jobs have 2",
            ),
            (Some("2,7"), None, "2", None, "have 2 by PCI_BUS_ID"),
            (Some("GPU-8f"), None, "2", None, "have 2 by"),
            (Some("GPU-8f,GPU-9"), None, "GPU-8f", Some("GPU-9"), ""),
            (Some("GPU-8"), None, "GPU-8f", None, "have GPU-8f"),
            (None, None, "any", Some(""), "no GPU: another has some"),
        ] {
            let what = format!("{visible:?} {order:?} {held:?}");
            let (seen, note) = left(visible, order, held, true);
            assert_eq!(seen.as_deref(), sees, "{what}");
            let is_said = note.contains(said) && note.is_empty() == said.is_empty();
            assert!(is_said, "{what}: {note}");
        }
    }

    #[test]
    fn a_list_of_gpus_names_each_once_and_none_that_is_not_there() {
        for (list, there, why) in [
            ("0,1", 0, None),
            ("0, 7,", 8, None),
            ("8", 0, None),
            ("-1", 8, None),
            ("GPU-8f,GPU-9f", 1, None),
            ("8", 8, Some("this machine has no GPU 8: it has 8")),
            ("all", 0, Some("\"all\" names no GPU")),
            ("0-3", 8, Some("\"0-3\" names no GPU")),
            ("0,01", 8, Some("\"01\" names no GPU")),
            ("0,GPU-8f", 8, Some("0 and GPU-8f may be one GPU")),
            ("GPU-8f,GPU-8", 8, Some("GPU-8f and GPU-8 may be one")),
        ] {
            let found = Gpus::listed_of(list, there).err().unwrap_or_default();
            assert_eq!(found.is_empty(), why.is_none(), "{list}: {found}");
            assert!(found.contains(why.unwrap_or_default()), "{list}: {found}");
        }
    }

    #[test]
    fn an_engine_of_containers_counts_as_the_driver_does() {
        for (engine, name, order, is_taken) in [
            ("docker", "1", OF_DRIVER, true),
            ("docker", "1", OF_CUDA, false),
            ("apptainer", "1", OF_CUDA, true),
            ("podman", "GPU-8f", OF_CUDA, true),
        ] {
            let gpus = TaskGpus {
                of_tasks: vec![list(name)],
                order: order.to_owned(),
                are_own: true,
                note: None,
            };
            let found = gpus.of_container(0, engine);
            assert_eq!(found.is_ok(), is_taken, "{engine} {name} {order}");
        }
    }
}
