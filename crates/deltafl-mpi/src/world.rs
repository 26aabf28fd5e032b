//! The ranks of a job, and checks that they agree.

use std::error::Error;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::num::NonZeroUsize;

use deltafl::compute::Compute;
use deltafl::data::Federation;
use deltafl::exchange::{ExchangeError, Simulation};
use deltafl::kernel::Isa;
use mpi::Threading;
use mpi::collective::SystemOperation;
use mpi::datatype::PartitionMut;
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Root};

use crate::agreed::Agreed;
use crate::launcher;
use crate::ranks::Ranks;
use crate::throughput::{self, Throughput};

/// The exchange over MPI ranks. Every rank asks it the same questions in the same order.
pub type MpiExchange<'a, C> = Simulation<'a, C, Ranks<'a>>;

/// The ranks of a job. Every method is collective, except those that only return names and numbers.
///
/// An error on one rank alone must end in [`World::fail`], because the others may be waiting in a
/// collective. A panic also ends the job.
pub struct World {
    communicator: SimpleCommunicator,
    rank: usize,
    hosts: Vec<String>,
    /// Dropped last, because it finalises MPI.
    _universe: Universe,
}

/// An error from [`World::init`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorldError {
    /// MPI was already initialised in this process. It can be initialised only once.
    #[error("MPI was already initialised in this process")]
    Again,
    /// The MPI library does not support threads.
    #[error("the MPI library does not support MPI_THREAD_FUNNELED")]
    NoThreads,
    /// The processes of the job are not connected to each other.
    #[error(
        "{variable} is {tasks}, but MPI sees a single rank: the {tasks} processes are not connected \
         and would each train the whole run.\n\
         Under Slurm, start them with `srun --mpi=pmix` (see `srun --mpi=list`) or `mpirun`; \
         with mpirun, use the one of the MPI that this program was built against.\n\
         To run on one rank on purpose, unset {variable}"
    )]
    Singleton {
        /// The environment variable that announced more ranks.
        variable: &'static str,
        /// The announced number of ranks.
        tasks: usize,
    },
}

/// A rank has a different value than rank 0.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} on rank {rank} ({host}) differs from rank 0")]
pub struct Differs {
    /// The name of the value.
    pub what: &'static str,
    /// The first rank that differs.
    pub rank: usize,
    /// The host of that rank.
    pub host: String,
}

impl World {
    /// Joins the job in which this process was launched.
    ///
    /// # Errors
    ///
    /// Returns an error if MPI cannot be initialised or the launcher announced more ranks than MPI
    /// reports.
    pub fn init() -> Result<Self, WorldError> {
        let promised = launcher::several(|name| std::env::var(name).ok());
        let (universe, threading) =
            mpi::initialize_with_threading(Threading::Funneled).ok_or(WorldError::Again)?;
        let communicator = universe.world();
        if let Some((variable, tasks)) = promised.filter(|_| communicator.size() == 1) {
            return Err(WorldError::Singleton { variable, tasks });
        }
        if threading < Threading::Funneled {
            return Err(WorldError::NoThreads);
        }
        let rank = communicator.rank() as usize;
        let host = mpi::environment::processor_name().unwrap_or_default();
        let mut world = Self { communicator, rank, hosts: Vec::new(), _universe: universe };
        let hosts = world.gather_bytes(host.as_bytes());
        world.hosts = hosts.iter().map(|host| String::from_utf8_lossy(host).into_owned()).collect();
        Ok(world)
    }

    /// Returns the number of this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> usize {
        self.communicator.size() as usize
    }

    /// Returns true on rank 0, which writes the run folder.
    pub fn is_root(&self) -> bool {
        self.rank == 0
    }

    /// Returns the host of a rank.
    pub fn host(&self, rank: usize) -> &str {
        &self.hosts[rank]
    }

    /// Returns the number of lower ranks on the same host: the index of the GPU of this rank.
    pub fn rank_on_host(&self) -> usize {
        self.hosts[..self.rank].iter().filter(|&host| *host == self.hosts[self.rank]).count()
    }

    /// Returns the exchange of this rank, whose part of the devices is computed by `compute`.
    ///
    /// # Errors
    ///
    /// Fails if the federation has no train devices.
    pub fn exchange<'a, C: Compute>(
        &'a self,
        compute: C,
        federation: &'a Federation,
    ) -> Result<MpiExchange<'a, C>, ExchangeError> {
        Simulation::with_peers(compute, federation, Ranks::new(self))
    }

    /// Returns the work of each rank so far on rank 0, and `None` on the other ranks. Collective.
    pub fn throughput<C: Compute>(&self, exchange: &MpiExchange<'_, C>) -> Option<Throughput> {
        let ranks = exchange.peers();
        throughput::gather(self, exchange.work_done(), ranks.busy(), ranks.waited())
    }

    /// Wraps the observer of rank 0 for all ranks. The other ranks pass `None`.
    pub fn observe<O>(&self, observer: Option<O>) -> Agreed<'_, O> {
        Agreed::new(self, observer)
    }

    /// Broadcasts the bytes of rank 0 to all ranks, for example a checkpoint that only rank 0
    /// reads.
    pub fn bytes_of_root(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        let root = self.communicator.process_at_rank(0);
        let mut len = bytes.len() as u64;
        root.broadcast_into(&mut len);
        bytes.resize(len as usize, 0);
        bytes.chunks_mut(crate::ranks::MOST).for_each(|chunk| root.broadcast_into(chunk));
        bytes
    }

    /// Broadcasts a small number of rank 0 to all ranks.
    pub(crate) fn number_of_root(&self, mut number: u8) -> u8 {
        self.communicator.process_at_rank(0).broadcast_into(&mut number);
        number
    }

    /// Returns the number of threads of this rank. `None` asks for the cores that the launcher has
    /// bound the rank to, shared with the ranks that are bound to the same cores.
    pub fn threads(&self, asked: Option<NonZeroUsize>) -> NonZeroUsize {
        let bound_to = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let bound_to = bound_to.lines().find(|line| line.starts_with("Cpus_allowed_list"));
        let place = format!("{} {}", self.host(self.rank), bound_to.unwrap_or_default());
        let here = self.gather_hash(&place);
        let sharing = here.iter().filter(|&&other| other == here[self.rank]).count();
        let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        asked.or(NonZeroUsize::new(cores / sharing)).unwrap_or(NonZeroUsize::MIN)
    }

    /// Returns the fastest instruction set that all ranks support. Two instruction sets may differ
    /// in bits.
    pub fn common_isa(&self, isa: Isa) -> Isa {
        let place = Isa::ALL.iter().position(|&known| known == isa).unwrap_or(0) as u64;
        let mut lowest = place;
        self.communicator.all_reduce_into(&place, &mut lowest, SystemOperation::min());
        Isa::ALL[lowest as usize]
    }

    /// Checks that all ranks have the same `value` of `what`. The result is the same on all ranks.
    pub fn same(&self, what: &'static str, value: &(impl Hash + ?Sized)) -> Result<(), Differs> {
        let values = self.gather_hash(value);
        match values.iter().position(|&other| other != values[0]) {
            None => Ok(()),
            Some(rank) => Err(Differs { what, rank, host: self.host(rank).to_owned() }),
        }
    }

    /// Returns the lowest rank for which `failed` is true, on all ranks. This rank should report
    /// the error if several ranks may have the same one.
    pub fn first_failure(&self, failed: bool) -> Option<usize> {
        let mut all = vec![0u8; self.size()];
        self.communicator.all_gather_into(&u8::from(failed), &mut all[..]);
        all.iter().position(|&failed| failed == 1)
    }

    /// Ends the job on all ranks. Not collective.
    pub fn abort(&self, code: u8) -> ! {
        self.communicator.abort(i32::from(code))
    }

    /// Prints the failure of this rank on standard error and ends the job on all ranks. Not
    /// collective.
    pub fn fail(&self, error: &dyn Error, code: u8) -> ! {
        let mut reason = error.to_string();
        let mut below = error.source();
        while let Some(source) = below {
            let said = source.to_string();
            if !reason.ends_with(&said) {
                reason = format!("{reason}: {said}");
            }
            below = source.source();
        }
        // One write: the message of mpirun must not divide the line.
        let line = format!("{self} failed: {reason}\n");
        // Nothing else can be done if standard error is closed.
        _ = std::io::stderr().write_all(line.as_bytes());
        self.abort(code)
    }

    pub(crate) fn communicator(&self) -> &SimpleCommunicator {
        &self.communicator
    }

    /// Gathers a few bytes of each rank, ordered by rank.
    pub(crate) fn gather_bytes(&self, bytes: &[u8]) -> Vec<Vec<u8>> {
        let mut counts = vec![0i32; self.size()];
        self.communicator.all_gather_into(&(bytes.len() as i32), &mut counts[..]);
        let starts: Vec<i32> =
            counts.iter().scan(0, |end, &count| Some(std::mem::replace(end, *end + count))).collect();
        let mut all = vec![0u8; counts.iter().map(|&count| count as usize).sum()];
        let mut parts = PartitionMut::new(&mut all[..], &counts[..], &starts[..]);
        self.communicator.all_gather_varcount_into(bytes, &mut parts);
        let part = |(&start, &count): (&i32, &i32)| all[start as usize..(start + count) as usize].to_vec();
        starts.iter().zip(&counts).map(part).collect()
    }

    /// Gathers a hash of the value of each rank, ordered by rank.
    fn gather_hash(&self, value: &(impl Hash + ?Sized)) -> Vec<u64> {
        let mut hasher = DefaultHasher::new();
        value.hash(&mut hasher);
        let mut hashes = vec![0u64; self.size()];
        self.communicator.all_gather_into(&hasher.finish(), &mut hashes[..]);
        hashes
    }
}

/// Prints this rank, the number of ranks and the host.
impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} on {}", self.rank, self.size(), self.host(self.rank))
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Finalising MPI waits for the other ranks, which may be waiting for this one.
        if std::thread::panicking() {
            self.communicator.abort(101);
        }
    }
}
