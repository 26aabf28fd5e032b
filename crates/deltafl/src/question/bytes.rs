//! Encoding and decoding of the fields of a question.

use super::{Ask, MAX_BATCH, MAX_MEASURES, MAX_TRACKS, MalformedQuestion, Query, malformed};
use crate::algorithm;
use crate::evaluation::Measure;
use crate::params::ParamsId;
use crate::privacy::{Excess, Noise};
use crate::selection::Weighting;
use crate::superquantile::private::{Bins, QuantileQuery, TreeBins};
use crate::terms::{Clip, Terms, TrackSchedule, Weights};
use crate::trainer::{Correction, LocalPlan, Work};

pub(super) struct ByteWriter(pub(super) Vec<u8>);

impl ByteWriter {
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn u8(&mut self, number: u8) -> &mut Self {
        self.bytes(&[number])
    }

    pub(super) fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    pub(super) fn u64(&mut self, number: u64) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    fn f32(&mut self, number: f32) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    pub(super) fn f64(&mut self, number: f64) -> &mut Self {
        self.bytes(&number.to_le_bytes())
    }

    pub(super) fn noise(&mut self, noise: Option<&Noise>) {
        match noise {
            None => self.u8(0),
            Some(Noise { variance, units, honest, clip, excess }) => {
                self.u8(if excess.is_some() { 2 } else { 1 });
                self.u32(*variance).u32(*units).u32(*honest).f64(clip.map_or(0.0, Clip::get));
                match excess {
                    Some(Excess { accomplices, most }) => self.u32(*accomplices).u32(*most),
                    None => self,
                }
            }
        };
    }

    pub(super) fn ask(&mut self, ask: &Ask) {
        match ask {
            Ask::Quantile(QuantileQuery::Histogram(bins)) => {
                self.u8(0).f64(bins.lower()).f64(bins.upper()).u32(bins.places() as u32 - 2);
            }
            Ask::Quantile(QuantileQuery::MeanStep { mu, floor }) => {
                self.u8(1).f64(*mu).f64(*floor);
            }
            Ask::Quantile(QuantileQuery::Tree(tree)) => {
                self.u8(4).f64(tree.lower()).f64(tree.upper()).u8(tree.height() as u8);
            }
            Ask::Update { weighting, plan } => {
                let (name, numbers) = (weighting.kind().name, weighting.numbers());
                self.u8(2).u8(name.len() as u8).bytes(name.as_bytes()).u8(numbers.len() as u8);
                numbers.iter().for_each(|&number| _ = self.f64(number));
                match plan.work {
                    Work::Epochs(epochs) => self.u8(0).u32(epochs),
                    Work::Steps(steps) => self.u8(1).u32(steps),
                };
                self.u32(plan.batch as u32).f32(plan.learning_rate).f32(plan.l2).f32(plan.proximal);
                let correction = plan.correction.map_or("", |correction| correction.name);
                self.u8(correction.len() as u8).bytes(correction.as_bytes());
            }
            Ask::Evaluation(measures) => {
                self.u8(3).u8(measures.len() as u8);
                for name in measures.iter().map(|measure| measure.name()) {
                    self.u8(name.len() as u8).bytes(name.as_bytes());
                }
            }
        }
    }
}

pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], MalformedQuestion> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(malformed(field))?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], MalformedQuestion> {
        self.bytes(N, field)?.try_into().map_err(|_| malformed(field))
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, MalformedQuestion> {
        self.array::<1>(field).map(|[byte]| byte)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, MalformedQuestion> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, MalformedQuestion> {
        self.array(field).map(u64::from_le_bytes)
    }

    fn f32(&mut self, field: &'static str) -> Result<f32, MalformedQuestion> {
        let number = f32::from_le_bytes(self.array(field)?);
        if number.is_finite() { Ok(number) } else { Err(malformed(field)) }
    }

    fn f64(&mut self, field: &'static str) -> Result<f64, MalformedQuestion> {
        let number = f64::from_le_bytes(self.array(field)?);
        if number.is_finite() { Ok(number) } else { Err(malformed(field)) }
    }

    pub(super) fn terms(&mut self) -> Result<Terms, MalformedQuestion> {
        let weights = Weights::ALL.get(usize::from(self.u8("weights")?));
        let schedule = TrackSchedule::ALL.get(usize::from(self.u8("schedule")?));
        let tracks = self.u32("tracks")?;
        let weights = *weights.ok_or(malformed("weights"))?;
        let schedule = *schedule.ok_or(malformed("schedule"))?;
        if !(1..=MAX_TRACKS).contains(&tracks) {
            return Err(malformed("tracks"));
        }
        Ok(Terms { weights, schedule, tracks, clip: self.clip()? })
    }

    fn clip(&mut self) -> Result<Option<Clip>, MalformedQuestion> {
        let clip = self.f64("clip")?;
        // −0 is rejected, because the encoding is unique.
        let none = clip.to_bits() == 0;
        if none { Ok(None) } else { Clip::try_from(clip).map(Some).map_err(|_| malformed("clip")) }
    }

    fn noise(&mut self) -> Result<Option<Noise>, MalformedQuestion> {
        match self.u8("noise")? {
            0 => Ok(None),
            tag @ (1 | 2) => {
                let (variance, units) = (self.u32("noise")?, self.u32("noise")?);
                let (honest, clip) = (self.u32("noise")?, self.clip()?);
                let excess = match tag {
                    1 => None,
                    _ => Some(Excess { accomplices: self.u32("noise")?, most: self.u32("noise")? }),
                };
                Ok(Some(Noise { variance, units, honest, clip, excess }))
            }
            _ => Err(malformed("noise")),
        }
    }

    pub(super) fn query(&mut self) -> Result<Query<ParamsId>, MalformedQuestion> {
        let (track, params) = (self.u32("track")?, self.params()?);
        let ask = match self.u8("query")? {
            0 => {
                let (lower, upper) = (self.f64("histogram")?, self.f64("histogram")?);
                let bins = Bins::new(lower, upper, self.u32("histogram")?);
                Ask::Quantile(QuantileQuery::Histogram(bins.map_err(|_| malformed("histogram"))?))
            }
            1 => {
                let (mu, floor) = (self.f64("mean step")?, self.f64("mean step")?);
                if floor <= 0.0 {
                    return Err(malformed("mean step"));
                }
                Ask::Quantile(QuantileQuery::MeanStep { mu, floor })
            }
            2 => Ask::Update { weighting: self.weighting()?, plan: self.plan()? },
            3 => Ask::Evaluation(self.measures()?),
            4 => {
                let (lower, upper) = (self.f64("tree")?, self.f64("tree")?);
                let tree = TreeBins::new(lower, upper, self.u8("tree")?.into());
                Ask::Quantile(QuantileQuery::Tree(tree.map_err(|_| malformed("tree"))?))
            }
            _ => return Err(malformed("query")),
        };
        let sent = match &ask {
            Ask::Quantile(_) | Ask::Evaluation(_) => 0,
            Ask::Update { plan, .. } => plan.sent(),
        };
        let sent = (0..sent).map(|_| self.params()).collect::<Result<Vec<_>, _>>()?;
        if sent.iter().any(|sent| sent.len != params.len) {
            return Err(malformed("sent"));
        }
        Ok(Query { track, params, sent, ask, noise: self.noise()? })
    }

    fn params(&mut self) -> Result<ParamsId, MalformedQuestion> {
        let hash = blake3::Hash::from_bytes(self.array("params")?);
        Ok(ParamsId { hash, len: self.u64("params")? })
    }

    fn weighting(&mut self) -> Result<Weighting, MalformedQuestion> {
        let len = self.u8("weighting")?.into();
        let name = std::str::from_utf8(self.bytes(len, "weighting")?).map_err(|_| malformed("weighting"))?;
        let kind = algorithm::weighting_kind(name).ok_or(malformed("weighting"))?;
        let count = self.u8("weighting")?;
        let numbers = (0..count).map(|_| self.f64("weighting")).collect::<Result<Vec<f64>, _>>()?;
        Weighting::new(kind, &numbers).ok_or(malformed("weighting"))
    }

    /// Reads the measures of an evaluation without duplicates. A second answer about one w would
    /// add cost but no information.
    fn measures(&mut self) -> Result<Vec<Measure>, MalformedQuestion> {
        let count = usize::from(self.u8("measures")?);
        if !(1..=MAX_MEASURES).contains(&count) {
            return Err(malformed("measures"));
        }
        let mut measures = Vec::with_capacity(count);
        for _ in 0..count {
            let len = self.u8("measures")?.into();
            let name = std::str::from_utf8(self.bytes(len, "measures")?);
            let measure = name.ok().and_then(Measure::named).ok_or(malformed("measures"))?;
            if measures.contains(&measure) {
                return Err(malformed("measures"));
            }
            measures.push(measure);
        }
        Ok(measures)
    }

    fn correction(&mut self) -> Result<Option<&'static Correction>, MalformedQuestion> {
        let len = self.u8("correction")?.into();
        if len == 0 {
            return Ok(None);
        }
        let name =
            std::str::from_utf8(self.bytes(len, "correction")?).map_err(|_| malformed("correction"))?;
        algorithm::correction(name).map(Some).ok_or(malformed("correction"))
    }

    fn plan(&mut self) -> Result<LocalPlan, MalformedQuestion> {
        let work = match (self.u8("work")?, self.u32("work")?) {
            (_, 0) => return Err(malformed("work")),
            (0, epochs) => Work::Epochs(epochs),
            (1, steps) => Work::Steps(steps),
            _ => return Err(malformed("work")),
        };
        let batch = self.u32("batch")? as usize;
        if !(1..=MAX_BATCH).contains(&batch) {
            return Err(malformed("batch"));
        }
        let (learning_rate, l2) = (self.f32("learning rate")?, self.f32("l2")?);
        let (proximal, correction) = (self.f32("proximal")?, self.correction()?);
        Ok(LocalPlan { work, batch, learning_rate, l2, proximal, correction })
    }
}
