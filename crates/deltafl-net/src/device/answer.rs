//! A device's answer to a question: the code of every engine, on this device's data.

use deltafl::device::{LocalPlan, Member, Work, Workspace, stream_key};
use deltafl::engine::{Query, context};
use deltafl::model::Model;
use deltafl::params::Params;

use super::Data;
use crate::wire::Question;

/// F_k(w) at the parameters of the present round, so that it is computed once.
#[derive(Clone, Debug, Default)]
pub(super) struct Losses {
    round: Option<(u64, u64)>,
    by_params: Vec<(blake3::Hash, f64)>,
}

/// An answer, and what it is bound to.
pub(super) struct Answer {
    pub(super) values: Vec<u64>,
    pub(super) context: Vec<u8>,
}

/// A question with everything that a device needs to answer it.
pub(super) struct Task<'a> {
    pub(super) model: &'a dyn Model,
    pub(super) data: &'a Data,
}

impl Task<'_> {
    /// The answers to all queries, one behind the other; `params` has an entry per query.
    pub(super) fn answer(
        &self,
        question: &Question,
        params: &[Params],
        losses: &mut Losses,
        workspace: &mut Workspace,
    ) -> Answer {
        let round = question.round();
        losses.of_round((round.seed, round.index));
        let member = self.member();
        let queries: Vec<Query<'_>> =
            question.queries.iter().zip(params).map(|(query, params)| query.at(params)).collect();
        let mut values = Vec::with_capacity(queries.iter().map(Query::answer_len).sum());
        for query in &queries {
            let loss = query.needs_loss().then(|| losses.at(query.params(), &member, workspace));
            let start = values.len();
            values.resize(start + query.answer_len(), 0);
            let query = at_hand(query, self.data.federation.count(self.data.device));
            member.answer(&round, &query, loss, workspace, &mut values[start..]);
        }
        Answer { values, context: context(&round, &queries) }
    }

    /// F_k at each of the parameters.
    pub(super) fn losses(&self, params: &[Params], workspace: &mut Workspace) -> Vec<f64> {
        let member = self.member();
        params.iter().map(|params| member.loss(params, workspace)).collect()
    }

    fn member(&self) -> Member<'_> {
        let Data { federation, device } = self.data;
        Member {
            model: self.model,
            examples: federation.examples(*device),
            weight: federation.count(*device) as f64,
            key: stream_key(self.data.name()),
        }
    }
}

/// The same query with a batch that is no longer than an epoch: the bits are the same, and memory is sized by the examples
/// at hand and not by what the server says.
fn at_hand<'a>(query: &Query<'a>, examples: u64) -> Query<'a> {
    let mut query = query.clone();
    if let Query::LocalUpdate { plan: plan @ LocalPlan { work: Work::Epochs(_), .. }, .. } = &mut query {
        plan.batch = plan.batch.min(usize::try_from(examples).unwrap_or(usize::MAX).max(1));
    }
    query
}

impl Losses {
    fn of_round(&mut self, round: (u64, u64)) {
        if self.round != Some(round) {
            *self = Self { round: Some(round), by_params: Vec::new() };
        }
    }

    fn at(&mut self, params: &Params, member: &Member<'_>, workspace: &mut Workspace) -> f64 {
        let hash = params.hash();
        if let Some((_, loss)) = self.by_params.iter().find(|(known, _)| *known == hash) {
            return *loss;
        }
        let loss = member.loss(params, workspace);
        self.by_params.push((hash, loss));
        loss
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use deltafl::data::Federation;
    use deltafl::device::Admission;
    use deltafl::kernel::Isa;
    use deltafl_data::experiment::Experiment;
    use prost::Message as _;

    use super::*;
    use crate::wire::{BlobId, proto};

    const EXPERIMENT: &str = r#"
        name = "one-weight"
        rounds = 1
        cohort = 3
        data = { source = { kind = "glyphs", devices = 4, seed = 3 } }
        model = { kind = "linear" }
        local = { steps = 1, batch = 10, learning_rate = 0.1 }
        algorithm = [{ kind = "fedavg" }]
    "#;

    /// A field of protocol buffers that holds bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8], bytes].concat()
    }

    /// The answer of device 0 to a question of these bytes.
    fn answer(model: &dyn Model, federation: &Arc<Federation>, params: &Params, question: &[u8]) -> Answer {
        let question: Question = proto::Question::decode(question).unwrap().try_into().unwrap();
        let data = Data::of(Arc::clone(federation), 0);
        let params = vec![params.clone(); question.queries.len()];
        Task { model, data: &data }.answer(
            &question,
            &params,
            &mut Losses::default(),
            &mut Workspace::default(),
        )
    }

    #[test]
    fn a_batch_longer_than_the_data_changes_no_bit_and_takes_no_memory() {
        let step = deltafl::model::Step { learning_rate: 0.1, l2: 0.0 };
        let plan = |batch| LocalPlan { work: Work::Epochs(2), batch, step };
        let params = Params::from(vec![0.0]);
        let asked = |plan| Query::LocalUpdate { params: &params, admission: Admission::Everyone, plan };
        let batch = |query| match query {
            Query::LocalUpdate { plan, .. } => plan.batch,
            Query::Quantile { .. } => 0,
        };
        assert_eq!(batch(at_hand(&asked(plan(1 << 20)), 7)), 7);
        assert_eq!(batch(at_hand(&asked(plan(3)), 7)), 3);

        let experiment: Experiment = toml::from_str(EXPERIMENT).unwrap();
        let federation = Arc::new(experiment.data.load().unwrap());
        let model = experiment.model.spec().build(&federation, Isa::detect()).unwrap();
        let params = Params::from(vec![0.0; model.num_params()]);
        let examples = usize::try_from(federation.count(0)).unwrap();
        let trained = |batch| {
            let mut workspace = Workspace::default();
            let mut stream = deltafl::stream::Stream::new(1, deltafl::stream::Purpose::Faults, 0, 0);
            let examples = federation.examples(0);
            workspace.local_update(&*model, params.as_slice(), &examples, &plan(batch), &mut stream).to_vec()
        };
        assert_eq!(trained(examples), trained(10 * examples));
    }

    #[test]
    fn no_question_gives_a_device_a_weight_of_its_own() {
        let experiment: Experiment = toml::from_str(EXPERIMENT).unwrap();
        let federation = Arc::new(experiment.data.load().unwrap());
        let model = experiment.model.spec().build(&federation, Isa::detect()).unwrap();
        let params = Params::from(vec![0.0; model.num_params()]);
        let update = proto::LocalUpdate {
            work: Some(proto::local_update::Work::Steps(1)),
            batch: 10,
            learning_rate: 0.1,
            ..proto::LocalUpdate::default()
        };
        let blob = BlobId { hash: params.hash(), len: 4 * params.len() as u64 };
        let query =
            proto::Query { params: Some(blob.to_wire()), kind: Some(proto::query::Kind::Update(update)) };
        let fair = proto::Question { seed: 1, round: 0, cohort: 3, queries: vec![query] }.encode_to_vec();
        // Field 4 once said that a device counts so often: device 0, a hundred thousand times.
        let repeat = [&[1 << 3, 0, 2 << 3][..], &[0xa0, 0x8d, 0x06]].concat();
        let singled_out = [fair.clone(), field(4, &repeat)].concat();
        let fair = answer(&*model, &federation, &params, &fair);
        let singled_out = answer(&*model, &federation, &params, &singled_out);
        assert!(fair.values.iter().any(|&value| value != 0));
        assert_eq!(fair.values, singled_out.values);
    }
}
