//! Where the tasks of a run meet: an address and a port for each, found out by the batch script as soon as Slurm has given the nodes.
//!
//! Jobs that run on a node at the same time have different processors of it, as long as Slurm does not give one to two jobs. So a port follows
//! from the number of a processor: the node's processors have as many ports as the next power of two, at least 64, and a job has one such range
//! of them by its number. Jobs with the same range differ by their processors; jobs that share a processor differ by their ranges, unless
//! their numbers are a multiple of 218 apart, or less on nodes of more than 64 processors.

/// The file with a line for each task, the name of its node and its address.
pub(super) const PLACES: &str = "places";

/// The first port of tasks.
const FIRST: u32 = 16_000;
/// How many there are: they end below the ports that the system hands out.
const PORTS: u32 = 14_000;

/// Writes the file. The nodes of a simulated cluster may share a network: the ports of their daemons tell them apart.
const WRITE: &str = r#"set -f; declare -A cpus addresses ports sizes
for word in $(scontrol --details --oneliner show job "$SLURM_JOB_ID"); do
  case $word in
  Nodes=*) nodes=$(scontrol show hostnames "${word#Nodes=}");;
  CPU_IDs=*) for node in $nodes; do cpus[$node]=${word#CPU_IDs=}; done;;
  esac
done
while read -r line; do
  node= address= port=0 total=0
  for word in $line; do
    case $word in
    NodeName=*) node=${word#*=};; NodeAddr=*) address=${word#*=};; Port=*) port=${word#*=};; CPUTot=*) total=${word#*=};;
    esac
  done
  [ -n "$node" ] || continue
  for ((size = 64; size < total; size *= 2)); do :; done
  case $address in ''|'(null)') address=$node;; *:*) address=[$address];; esac
  addresses[$node]=$address ports[$node]=$((port * total)) sizes[$node]=$size
done < <(scontrol --oneliner show node "$SLURM_JOB_NODELIST")
at=0
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
  size=${sizes[$node]:-64} here=0
  base=$((first + SLURM_JOB_ID % (count / size) * size))
  IFS=, read -ra ranges <<<"${cpus[$node]}"
  for range in "${ranges[@]}"; do
    for ((cpu = ${range%-*}; cpu <= ${range#*-} && here < each && at < tasks; cpu++, here++, at++)); do
      echo "$node ${addresses[$node]:-$node}:$((base + (cpu + ${ports[$node]:-0}) % size))"
    done
  done
done >"$PHALANX_RUN/places.new"
if [ $at != $tasks ]; then
  echo "Slurm shows processors for $at of $tasks tasks of job $SLURM_JOB_ID: look at scontrol --details show job $SLURM_JOB_ID" >&2; exit 3
fi
mv "$PHALANX_RUN/places.new" "$PHALANX_RUN/places"; set +f
"#;

/// The lines of the batch script that write the file for this number of tasks, `each` on a node; `$PHALANX_RUN` is the folder.
pub(super) fn written(tasks: usize, each: usize) -> String {
    format!("tasks={tasks} each={each} first={FIRST} count={PORTS}\n{WRITE}")
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fmt::Write as _;
    use std::fs;
    use std::process::{Command, Output};

    use phalanx_testkit::write_program;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::Scratch;

    /// What Slurm says of a job, and who asks: which node has which processors.
    struct Told<'a> {
        id: u32,
        total: u32,
        nodes: &'a [(String, BTreeSet<u32>)],
    }

    impl Told<'_> {
        /// Runs the lines with a `scontrol` that tells this.
        fn run(&self, root: &Scratch, tasks: usize, each: usize) -> Output {
            let bin = root.0.join("bin");
            fs::create_dir_all(&bin).unwrap();
            let names: Vec<&str> = self.nodes.iter().map(|(name, _)| name.as_str()).collect();
            let mut job = "JobId=1 NodeList=x NumNodes=1 ".to_owned();
            let mut nodes = String::new();
            for (at, (name, cpus)) in self.nodes.iter().enumerate() {
                let _ = write!(job, "  Nodes={name} CPU_IDs={} Mem=0 ", ranges(cpus));
                // Some have an address of their own.
                let address = if at == 1 {
                    "(null)"
                } else {
                    &format!("10.0.0.{name}")
                };
                let _ = writeln!(
                    nodes,
                    "NodeName={name} CPUTot={} NodeAddr={address} OS=Linux 6 *",
                    self.total
                );
            }
            for (file, text) in [("job", job), ("node", nodes), ("names", names.join("\n"))] {
                fs::write(root.0.join(file), text).unwrap();
            }
            let script = format!(
                "#!/bin/bash\ncd {}\ncase \"$*\" in *'show job'*) cat job;; *'show node'*) cat node;; *hostnames\\ all) cat names;; \
                 *) for word; do :; done; echo \"$word\";; esac\n",
                root.0.display()
            );
            write_program(bin.join("scontrol"), &script);
            let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
            let mut command = Command::new("bash");
            command
                .args(["-c", &written(tasks, each)])
                .env("PATH", path);
            command.env("PHALANX_RUN", &root.0);
            command.env("SLURM_JOB_ID", self.id.to_string());
            command.env("SLURM_JOB_NODELIST", "all").output().unwrap()
        }

        /// The addresses of the tasks of a job that has a task on each of its processors, by node.
        fn places(&self, root: &Scratch) -> Vec<(String, String, u32)> {
            let tasks = self.nodes.iter().map(|(_, cpus)| cpus.len()).sum();
            let output = self.run(root, tasks, usize::MAX >> 1);
            assert!(output.status.success(), "{output:?}");
            let text = fs::read_to_string(root.0.join(PLACES)).unwrap();
            let place = |line: &str| {
                let (node, address) = line.split_once(' ').unwrap();
                let (host, port) = address.rsplit_once(':').unwrap();
                (node.to_owned(), host.to_owned(), port.parse().unwrap())
            };
            let places: Vec<_> = text.lines().map(place).collect();
            assert_eq!(places.len(), tasks, "{text}");
            places
        }
    }

    /// As Slurm writes numbers: 0-2,5.
    fn ranges(cpus: &BTreeSet<u32>) -> String {
        let mut all: Vec<(u32, u32)> = Vec::new();
        for cpu in cpus {
            match all.last_mut() {
                Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
                _ => all.push((*cpu, *cpu)),
            }
        }
        let words = all.iter().map(|(from, to)| match from == to {
            true => from.to_string(),
            false => format!("{from}-{to}"),
        });
        words.collect::<Vec<_>>().join(",")
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn no_two_tasks_of_a_node_have_the_same_port(
            total in prop::sample::select(vec![2_u32, 48, 64, 200, 384]),
            ids in prop::collection::btree_set(1_u32..1000, 4),
            near in any::<bool>(),
            owners in prop::collection::vec((0_usize..5, 0_usize..5, 0_usize..5), 384),
        ) {
            let root = Scratch::new("slurm-ports");
            let first = *ids.first().unwrap();
            let mut taken: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
            for (job, id) in ids.into_iter().enumerate() {
                // One after another, or at any distance.
                let id = if near { first + job as u32 } else { id };
                let of = |node: usize, owner: &(usize, usize, usize)| [owner.0, owner.1, owner.2][node] == job;
                let nodes: Vec<(String, BTreeSet<u32>)> = (0..3)
                    .map(|node| {
                        let cpus = (0..total).filter(|cpu| of(node, &owners[*cpu as usize]));
                        (node.to_string(), cpus.collect::<BTreeSet<u32>>())
                    })
                    .filter(|(_, cpus)| !cpus.is_empty())
                    .collect();
                if nodes.is_empty() {
                    continue;
                }
                for (node, host, port) in (Told { id, total, nodes: &nodes }).places(&root) {
                    prop_assert!((FIRST..FIRST + PORTS).contains(&port), "{port}");
                    prop_assert!(taken.entry(host).or_default().insert(port), "{port} of node {node}, job {id}");
                }
            }
        }
    }

    #[test]
    fn tasks_fill_nodes_one_after_another_and_each_has_a_processor() {
        let root = Scratch::new("slurm-places");
        let nodes = [
            ("7".to_owned(), (4..9).collect()),
            ("8".to_owned(), [0, 3, 5].into()),
        ];
        let told = Told {
            id: 219,
            total: 16,
            nodes: &nodes,
        };
        assert!(told.run(&root, 5, 3).status.success());
        let expected =
            "7 10.0.0.7:16068\n7 10.0.0.7:16069\n7 10.0.0.7:16070\n8 8:16064\n8 8:16067\n";
        assert_eq!(fs::read_to_string(root.0.join(PLACES)).unwrap(), expected);
        let output = told.run(&root, 8, 4);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(
            said.contains("processors for 7 of 8 tasks of job 219"),
            "{said}"
        );
    }
}
