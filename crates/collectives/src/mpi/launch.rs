//! Which MPI started this process, by the variables that its launcher sets.

/// How a launcher of MPI started this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpiLaunch {
    /// The number of this process.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
    /// The variable that tells.
    pub variable: &'static str,
    /// The libraries that may belong to the launcher, the likeliest first.
    pub libraries: Vec<String>,
}

/// Names a library instead of those that the launcher's variables lead to.
pub const MPI_LIBRARY_VARIABLE: &str = "PHALANX_MPI_LIBRARY";

const OPEN_MPI: &str = "libmpi.so.40";
/// The MPI Forum's, then MPICH's usual name, then Debian's.
const MPICH: [&str; 4] = [
    "libmpi_abi.so.1",
    "libmpi_abi.so.0",
    "libmpi.so.12",
    "libmpich.so.12",
];

impl MpiLaunch {
    /// What the variables of a process say; `None` where no launcher of MPI started it. `srun` is one with `--mpi=pmix` or
    /// `--mpi=pmi2` only: without, Open MPI ends a process of Slurm as it starts.
    #[must_use]
    pub fn find(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let number = |names: &[&str]| {
            let mut values = names.iter().filter_map(|name| variable(name));
            values.find_map(|value| value.parse::<usize>().ok())
        };
        let mpich = || MPICH.map(String::from).to_vec();
        let (name, rank, size, libraries) = if variable("OMPI_COMM_WORLD_SIZE").is_some() {
            let rank = number(&["OMPI_COMM_WORLD_RANK"]);
            let size = number(&["OMPI_COMM_WORLD_SIZE"]);
            ("OMPI_COMM_WORLD_SIZE", rank, size, vec![OPEN_MPI.into()])
        } else if variable("PMIX_RANK").is_some() {
            let size = number(&["PMIX_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"]);
            let mut libraries = vec![OPEN_MPI.to_owned()];
            libraries.extend(mpich());
            ("PMIX_RANK", number(&["PMIX_RANK"]), size, libraries)
        } else if variable("PMI_RANK").is_some() || variable("PMI_FD").is_some() {
            let size = number(&["PMI_SIZE", "SLURM_STEP_NUM_TASKS"]);
            let rank = number(&["PMI_RANK", "SLURM_PROCID"]);
            ("PMI_RANK", rank, size, mpich())
        } else {
            return None;
        };
        let named = variable(MPI_LIBRARY_VARIABLE).filter(|path| !path.is_empty());
        Some(Self {
            rank: rank?,
            size: size?,
            variable: name,
            libraries: named.map_or(libraries, |path| vec![path]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(pairs: &[(&str, &str)]) -> Option<MpiLaunch> {
        MpiLaunch::find(|name| {
            let found = pairs.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn launchers_are_told_apart() {
        let open = find(&[
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("PMIX_RANK", "3"),
        ]);
        let open = open.unwrap();
        assert_eq!((open.rank, open.size), (3, 4));
        assert_eq!(open.libraries, ["libmpi.so.40"]);
        let slurm = find(&[("PMIX_RANK", "1"), ("SLURM_STEP_NUM_TASKS", "2")]).unwrap();
        assert_eq!((slurm.rank, slurm.size), (1, 2));
        assert_eq!(slurm.libraries[0], "libmpi.so.40");
        let mpich = find(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]).unwrap();
        assert_eq!(mpich.libraries.last().unwrap(), "libmpich.so.12");
        assert!(!mpich.libraries.contains(&"libmpi.so.40".to_owned()));
    }

    #[test]
    fn a_path_wins_and_plain_srun_is_no_mpi() {
        let named = find(&[
            ("PMI_RANK", "0"),
            ("PMI_SIZE", "2"),
            (MPI_LIBRARY_VARIABLE, "/opt/mpi/libmpi.so"),
        ]);
        assert_eq!(named.unwrap().libraries, ["/opt/mpi/libmpi.so"]);
        let srun = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
        assert_eq!(find(&srun), None);
    }
}
