//! Noisy updates on the GPU, and their sums modulo 2^64 (`kernels/noise.cu`).
//!
//! The GPU clips, rotates and rounds updates, and adds noise. One vector per sum is downloaded. The
//! bits are those of the CPU for the same w_k.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use deltafl::compute::{NOISY_FOOTER, NoiseStream, NoisyEncoding, ROUNDINGS, UpdateTask};
use deltafl::data::Federation;
use deltafl::params::add_wrapping;
use deltafl::question::RoundKey;
use rayon::prelude::*;

use crate::GpuError;
use crate::compile::KernelSource;
use crate::device::{GpuDevice, Kernel};
use crate::launch::{Arg, LaunchGrid, MOST_GRID_ROWS, launch};
use crate::memory::{Buffer, Mirror};
use crate::task::{NoisyJob, Undecided};
use crate::wanted::RequestedUpdate;

/// Jobs per block of the sum, as in the kernel.
const PER_BLOCK: u32 = 16;
/// The entries of a tile of the rotation, as in the kernel.
const TILE: usize = 4096;
/// The levels of one pass over entries of different tiles.
const LEVELS: u32 = 4;
/// The value of an offset that is absent, as in the kernel.
const NONE: u32 = u32::MAX;
/// The value of `attempt` without an update, as in the kernel.
const NOTHING: u32 = ROUNDINGS as u32 + 2;

pub(crate) fn source() -> KernelSource {
    let sizes = vec![("ROUNDINGS", ROUNDINGS), ("FOOTER", NOISY_FOOTER)];
    KernelSource { name: "noise.cu", text: include_str!("kernels/noise.cu").into(), sizes }
}

/// The noisy sums of a call, one per query.
pub(crate) struct NoisySums {
    kernels: Kernels,
    stream: Arc<CudaStream>,
    /// d, and the number of entries of a rotated update.
    params: usize,
    entries: usize,
    passes: Vec<RowPass>,
    places: Mirror<u32>,
    jobs: Mirror<NoisyJob>,
    signs: Mirror<u32>,
    /// The first word of the signs of each query.
    sign_offsets: HashMap<u32, u32>,
    tables: Mirror<u32>,
    /// The first word of the table of each variance.
    table_offsets: HashMap<u32, u32>,
    rotated: Buffer<f32>,
    sums: Mirror<u64>,
    undecided: Mirror<Undecided>,
    undecided_count: Mirror<u32>,
    /// The number of undecided samples for which there is room.
    room: u32,
    /// The stream and the sum of each job of the call.
    drawn: Vec<(NoiseStream, usize)>,
}

struct Kernels {
    measure: Kernel,
    rotate_tiles: Kernel,
    rotate_rows: Kernel,
    round: Kernel,
    add: Kernel,
}

/// A pass of the rotation over entries that are at least `stride` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RowPass {
    stride: usize,
    /// The first place of the pass, and their number.
    place: usize,
    groups: usize,
}

impl NoisySums {
    /// Creates sums for updates of this many parameters.
    pub(crate) fn new(device: &GpuDevice, stream: &Arc<CudaStream>, params: usize) -> Result<Self, GpuError> {
        let module = device.load(&source(), stream)?;
        let entries = NoisyEncoding::rotated_len(params);
        let (passes, written) = row_passes(entries);
        let mut places = Mirror::new(stream)?;
        places.send(written.len(), |host| host.copy_from_slice(&written))?;
        Ok(Self {
            kernels: Kernels {
                measure: module.kernel("measure_noisy", 0)?,
                rotate_tiles: module.kernel("rotate_tiles", 0)?,
                rotate_rows: module.kernel("rotate_rows", 0)?,
                round: module.kernel("round_noisy", 0)?,
                add: module.kernel("add_noisy", 0)?,
            },
            stream: stream.clone(),
            params,
            entries,
            passes,
            places,
            jobs: Mirror::new(stream)?,
            signs: Mirror::new(stream)?,
            sign_offsets: HashMap::new(),
            tables: Mirror::new(stream)?,
            table_offsets: HashMap::new(),
            rotated: Buffer::new(stream)?,
            sums: Mirror::new(stream)?,
            undecided: Mirror::new(stream)?,
            undecided_count: Mirror::new(stream)?,
            room: 0,
            drawn: Vec::new(),
        })
    }

    /// Returns the length of a sum.
    fn sum_len(&self) -> usize {
        self.entries + NOISY_FOOTER
    }

    /// Starts this many sums, all zero, and uploads the signs of the queries.
    pub(crate) fn start<'t>(
        &mut self,
        key: &RoundKey,
        tasks: impl Iterator<Item = &'t UpdateTask<'t>>,
        sums: &[Vec<u64>],
    ) -> Result<(), GpuError> {
        let len = sums.len() * self.sum_len();
        self.sums.reserve(len)?;
        self.sums.clear(len)?;
        self.undecided_count.reserve(1)?;
        self.undecided_count.clear(1)?;
        self.drawn.clear();
        self.sign_offsets.clear();
        let (mut signs, mut samples) = (Vec::new(), 0);
        for task in tasks {
            let (expected, got) = (self.sum_len(), sums[task.sum].len());
            if got != expected {
                return Err(GpuError::SumLength { expected, got });
            }
            let Some(noise) = task.noise else { continue };
            self.sign_offsets.entry(noise.query).or_insert_with(|| {
                let offset = signs.len() as u32;
                signs.extend(NoisyEncoding::signs(key, noise.query, self.params));
                offset
            });
            samples += self.sum_len() * (1 + noise.kept.map_or(0, |kept| kept.parts as usize));
        }
        self.signs.send(signs.len(), |host| host.copy_from_slice(&signs))?;
        // A table has fewer than 2¹⁵ thresholds among 2³¹ numbers, so that at most one sample in
        // 2¹⁶ is undecided on average. Twice as many have room.
        self.room = u32::try_from(1024 + (samples >> 15)).unwrap_or(u32::MAX);
        self.undecided.reserve(self.room as usize)
    }

    /// Adds a wave of trained updates whose w_k are in `local`, by slot.
    pub(crate) fn add_trained(
        &mut self,
        key: &RoundKey,
        federation: &Federation,
        wave: &[RequestedUpdate<'_>],
        params: Arg,
        local: Arg,
    ) -> Result<(), GpuError> {
        let (trained, kept) = self.jobs_of(key, federation, wave, true)?;
        let count = self.send_jobs(trained)?;
        self.rotated.reserve(wave.len() * self.entries)?;
        let (len, entries) = (Arg::U32(self.params as u32), Arg::U32(self.entries as u32));
        let (jobs, rotated) = (self.jobs.arg(), self.rotated.arg());
        let on = |kernel: &Kernel, blocks: usize, threads: u32, args: &[Arg]| {
            let blocks = (u32::try_from(blocks).unwrap_or(u32::MAX), 1);
            launch(&self.stream, kernel, LaunchGrid { blocks, threads }, args)
        };
        on(&self.kernels.measure, count, 32, &[jobs, params, local, len])?;
        let args = [jobs, self.signs.arg(), params, local, len, entries, rotated];
        on(&self.kernels.rotate_tiles, count * self.entries.div_ceil(TILE), 256, &args)?;
        for &RowPass { stride, place, groups } in &self.passes {
            let places = self.places.arg().offset::<u32>(2 * place);
            let args = [jobs, places, Arg::U32(groups as u32), Arg::U32(stride as u32), entries, rotated];
            on(&self.kernels.rotate_rows, count * groups * (stride / 256), 256, &args)?;
        }
        on(&self.kernels.round, count, 512, &[jobs, entries, rotated])?;
        self.add_jobs(count)?;
        self.add_noise_jobs(kept)
    }

    /// Adds the noise of devices without an update.
    pub(crate) fn add_untrained(
        &mut self,
        key: &RoundKey,
        federation: &Federation,
        untrained: &[RequestedUpdate<'_>],
    ) -> Result<(), GpuError> {
        let (own, kept) = self.jobs_of(key, federation, untrained, false)?;
        self.add_noise_jobs(own)?;
        self.add_noise_jobs(kept)
    }

    /// Adds the noise of jobs without an update.
    fn add_noise_jobs(&mut self, jobs: Jobs) -> Result<(), GpuError> {
        let mut rest: Jobs = jobs.into_iter().filter(|(job, _)| job.table != NONE).collect();
        while !rest.is_empty() {
            let later = rest.split_off(rest.len().min(PER_BLOCK as usize * MOST_GRID_ROWS));
            let count = self.send_jobs(std::mem::replace(&mut rest, later))?;
            self.add_jobs(count)?;
        }
        Ok(())
    }

    /// Adds the last `count` jobs, which are on the GPU, to their sums.
    fn add_jobs(&mut self, count: usize) -> Result<(), GpuError> {
        let base = self.drawn.len() - count;
        let args = [
            self.jobs.arg(),
            Arg::U32(count as u32),
            Arg::U32(base as u32),
            Arg::U32(self.entries as u32),
            self.rotated.arg(),
            self.tables.arg(),
            self.sums.arg(),
            self.undecided.arg(),
            Arg::U32(self.room),
            self.undecided_count.arg(),
        ];
        // A thread adds sixteen entries.
        let blocks = (self.sum_len().div_ceil(256).div_ceil(8) as u32, (count as u32).div_ceil(PER_BLOCK));
        launch(&self.stream, &self.kernels.add, LaunchGrid { blocks, threads: 128 }, &args)
    }

    /// Uploads jobs, sorted by sum, and returns their number.
    fn send_jobs(&mut self, mut jobs: Jobs) -> Result<usize, GpuError> {
        jobs.sort_by_key(|(job, _)| job.sum);
        self.jobs.send(jobs.len(), |host| {
            host.iter_mut().zip(&jobs).for_each(|(to, (job, _))| *to = *job);
        })?;
        let count = jobs.len();
        self.drawn.extend(jobs.into_iter().map(|(job, stream)| (stream, job.sum as usize)));
        Ok(count)
    }

    /// Returns the jobs of some tasks: their updates with their own noise, and the removable parts
    /// of their noise that stay.
    fn jobs_of(
        &mut self,
        key: &RoundKey,
        federation: &Federation,
        wanted: &[RequestedUpdate<'_>],
        trained: bool,
    ) -> Result<(Jobs, Jobs), GpuError> {
        // A cipher computes each stream, so the cores share the work.
        let encodings: Vec<Option<NoisyEncoding>> =
            wanted.par_iter().map(|wanted| NoisyEncoding::new(key, federation, &wanted.task)).collect();
        self.send_tables(encodings.iter().flatten())?;
        let (mut own, mut kept) = (Vec::with_capacity(wanted.len()), Vec::new());
        for (slot, (wanted, encoding)) in wanted.iter().zip(encodings).enumerate() {
            let (Some(encoding), Some(noise)) = (encoding, wanted.task.noise) else { continue };
            let job = |stream: &NoiseStream, attempt| NoisyJob {
                weight: wanted.task.weight,
                clip: encoding.clip,
                units: f64::from(encoding.units),
                most_squares: encoding.most_squares,
                norm: 0.0,
                scale: 0.0,
                counted: encoding.counted,
                params: wanted.vector,
                slot: slot as u32,
                sum: wanted.task.sum as u32,
                table: self.table_offsets.get(&stream.variance()).copied().unwrap_or(NONE),
                signs: self.sign_offsets.get(&noise.query).copied().unwrap_or(0),
                attempt,
                keys: stream.keys(),
            };
            own.push((job(&encoding.private, if trained { 0 } else { NOTHING }), encoding.private.clone()));
            kept.extend(encoding.kept.iter().map(|part| (job(part, NOTHING), part.clone())));
        }
        Ok((own, kept))
    }

    /// Uploads the tables of all variances if one is not on the GPU.
    fn send_tables<'e>(
        &mut self,
        encodings: impl Iterator<Item = &'e NoisyEncoding>,
    ) -> Result<(), GpuError> {
        let mut streams: HashMap<u32, &NoiseStream> = HashMap::new();
        for stream in encodings.flat_map(|encoding| encoding.kept.iter().chain([&encoding.private])) {
            streams.entry(stream.variance()).or_insert(stream);
        }
        streams.retain(|_, stream| stream.thresholds().is_some());
        if streams.keys().all(|variance| self.table_offsets.contains_key(variance)) {
            return Ok(());
        }
        self.table_offsets.clear();
        let mut words = Vec::new();
        for (variance, stream) in streams {
            if let Some(table) = stream.thresholds() {
                self.table_offsets.insert(variance, words.len() as u32);
                words.extend([table.shift, table.guide.len().div_ceil(2) as u32]);
                let pair =
                    |pair: &[u16]| u32::from(pair[0]) | pair.get(1).map_or(0, |&high| u32::from(high) << 16);
                words.extend(table.guide.chunks(2).map(pair));
                words.extend(table.thresholds);
            }
        }
        self.tables.send(words.len(), |host| host.copy_from_slice(&words))
    }

    /// Waits for the sums, draws the undecided samples, and adds both.
    pub(crate) fn finish(&mut self, sums: &mut [Vec<u64>]) -> Result<(), GpuError> {
        let len = self.sum_len();
        let noisy = self.sums.receive(sums.len() * len)?;
        for (sum, noisy) in sums.iter_mut().zip(noisy.chunks_exact(len)) {
            // A sum without noise has another length, and no entries here.
            if sum.len() == len {
                add_wrapping(sum, noisy);
            }
        }
        let count = self.undecided_count.receive(1)?[0];
        if count > self.room {
            return Err(GpuError::Undecided { count, room: self.room });
        }
        let mut undecided = self.undecided.receive(count as usize)?.to_vec();
        undecided.sort_unstable_by_key(|sample| (sample.job, sample.entry));
        for samples in undecided.chunk_by(|a, b| a.job == b.job) {
            let (stream, sum) = &self.drawn[samples[0].job as usize];
            let words = samples.iter().map(|sample| (sample.entry as usize, sample.word));
            stream.add_undecided(samples[0].keys as usize, words, &mut sums[*sum]);
        }
        Ok(())
    }
}

/// Jobs with their random numbers.
type Jobs = Vec<(NoisyJob, NoiseStream)>;

/// Returns the passes of the rotation after that of the tiles, and their places: the first entry
/// and the number of levels of each group of rows.
fn row_passes(entries: usize) -> (Vec<RowPass>, Vec<u32>) {
    let (mut passes, mut places, mut stride) = (Vec::new(), Vec::new(), TILE);
    loop {
        let (place, mut start) = (places.len() / 2, 0);
        while let Some(bits) = (entries - start).checked_ilog2() {
            let size = 1 << bits;
            if size > stride {
                let levels = (size / stride).ilog2().min(LEVELS);
                let firsts = (start..start + size).step_by(stride << levels);
                places.extend(firsts.flat_map(|first| [first as u32, levels]));
            }
            start += size;
        }
        let groups = places.len() / 2 - place;
        if groups == 0 {
            return (passes, places);
        }
        passes.push(RowPass { stride, place, groups });
        stride <<= LEVELS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_passes_of_a_rotation_contain_every_level_above_the_tile_once() {
        for entries in [8, 1024, 4096, 5120, 49_152, 115_712, (1 << 20) + 8192] {
            let (passes, places) = row_passes(entries);
            // The levels that each entry passes through, by the size of its block.
            let mut levels = vec![12; entries];
            for RowPass { stride, place, groups } in passes {
                for place in places[2 * place..2 * (place + groups)].chunks_exact(2) {
                    let (first, count) = (place[0] as usize, place[1]);
                    for level in &mut levels[first..first + (stride << count)] {
                        assert_eq!(1 << *level, stride, "{entries}: levels are in order");
                        *level += count;
                    }
                }
            }
            for (i, level) in levels.into_iter().enumerate() {
                let size = (entries ^ i).ilog2();
                assert_eq!(level, size.max(12), "{entries}: entry {i}");
            }
        }
    }
}
