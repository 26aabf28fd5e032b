//! A compiled stack as a [`Model`]: forward pass, loss, and a backward pass that moves the
//! parameters.

use super::Stack;
use super::operation::{Backward, Descent, Operation, Pass};
use super::program::{Instruction, Program, Slot, compile};
use crate::data::WordVectors;
use crate::kernel::softmax::{self, Rows};
use crate::kernel::{Granted, Isa, logistic as kernel_logistic, sums};
use crate::model::layout::{section, take};
use crate::model::{Batch, Inputs, Model, Score, Step, Tensor, logistic};
use crate::stream::Stream;
use crate::task::Task;

/// The examples of one pass of a gradient or an evaluation. Larger batches are split.
const PART: usize = 32;

/// A compiled stack.
#[derive(Debug)]
pub struct StackNetwork {
    stack: Stack,
    program: Program,
    num_params: usize,
    working_len: usize,
    kernel: Granted,
}

/// The activations, slopes and memory of a pass.
struct Workspace<'a> {
    activations: &'a mut [f32],
    slopes: &'a mut [f32],
    memory: &'a mut [f32],
    /// The outputs of a task with one output per example.
    outputs: &'a mut [f32],
}

/// The target of a backward pass.
enum Target<'a> {
    InPlace { working: &'a mut [f32], decay: f32 },
    Into { working: &'a [f32], total: &'a mut [f32] },
}

impl StackNetwork {
    /// Compiles a stack. The vectors are those of the data, if a layer uses them.
    ///
    /// # Panics
    /// If this CPU does not support the instruction set.
    pub fn new(stack: Stack, vectors: Option<&WordVectors>, isa: Isa) -> Self {
        let program = compile(&stack, vectors);
        let operations = || program.instructions.iter().filter_map(Instruction::operation);
        let num_params = operations().map(Operation::flat_len).sum();
        let working_len = operations().map(Operation::working_len).sum();
        Self { stack, program, num_params, working_len, kernel: Granted::new(isa) }
    }

    /// Returns the stack.
    pub fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Returns the number of outputs.
    fn outputs(&self) -> usize {
        self.stack.output().len()
    }

    fn output_rows(&self) -> Rows {
        Rows { classes: self.outputs(), stride: self.program.lens[self.program.output] }
    }

    /// Returns the start of a slot.
    fn offset(&self, slot: Slot, batch: usize) -> usize {
        self.program.lens[..slot].iter().map(|len| section(len * batch)).sum()
    }

    fn slots_len(&self, batch: usize) -> usize {
        self.offset(self.program.lens.len(), batch)
    }

    fn memory_len(&self, batch: usize) -> usize {
        self.program.instructions.iter().map(|instruction| instruction.memory_len(batch)).sum()
    }

    /// Returns the floats of scratch memory of a forward pass, or of both passes.
    fn pass_len(&self, batch: usize, is_training: bool) -> usize {
        let slots = self.slots_len(batch);
        slots * if is_training { 2 } else { 1 } + self.memory_len(batch) + section(batch)
    }

    fn workspace<'a>(&self, batch: usize, is_training: bool, mut scratch: &'a mut [f32]) -> Workspace<'a> {
        let slots = self.slots_len(batch);
        let activations = take(&mut scratch, slots);
        let slopes = take(&mut scratch, if is_training { slots } else { 0 });
        let memory = take(&mut scratch, self.memory_len(batch));
        Workspace { activations, slopes, memory, outputs: take(&mut scratch, batch) }
    }

    fn pass<'a>(&self, batch: Batch<'a>, key: Option<u64>) -> (Pass<'a>, &'a [f32]) {
        let (tokens, values) = match batch.inputs {
            Inputs::Dense(values) => (&[][..], values),
            Inputs::Tokens(tokens) => (tokens, &[][..]),
        };
        (Pass { batch: batch.len(), tokens, kernel: self.kernel, key }, values)
    }

    /// Returns a slot and the slots before it.
    fn slot_and_earlier<'a>(
        &self,
        slots: &'a mut [f32],
        slot: Slot,
        batch: usize,
    ) -> (&'a mut [f32], &'a mut [f32]) {
        let (earlier, rest) = slots.split_at_mut(self.offset(slot, batch));
        (&mut rest[..self.program.lens[slot] * batch], earlier)
    }

    /// Returns the activations of a slot among those before it. Slot 0 is the batch.
    fn input<'a>(&self, earlier: &'a [f32], slot: Slot, pass: &Pass<'_>, values: &'a [f32]) -> &'a [f32] {
        if slot == 0 {
            return values;
        }
        &earlier[self.offset(slot, pass.batch)..][..self.program.lens[slot] * pass.batch]
    }

    /// Runs the forward pass up to the outputs.
    fn forward(&self, working: &[f32], pass: &Pass<'_>, values: &[f32], space: &mut Workspace<'_>) {
        let (mut params, mut memory) = (working, &mut *space.memory);
        for instruction in &self.program.instructions {
            let own = take(&mut memory, instruction.memory_len(pass.batch));
            match instruction {
                Instruction::Apply { operation, input, output } => {
                    let (own_params, rest) = params.split_at(operation.working_len());
                    params = rest;
                    let (out, earlier) = self.slot_and_earlier(space.activations, *output, pass.batch);
                    let x = self.input(earlier, *input, pass, values);
                    operation.forward(pass, own_params, x, out, own);
                }
                Instruction::Replace { operation, slot } => {
                    let (out, _) = self.slot_and_earlier(space.activations, *slot, pass.batch);
                    operation.forward(pass, out, own);
                }
                Instruction::Fork { input, output } => {
                    let (out, earlier) = self.slot_and_earlier(space.activations, *output, pass.batch);
                    out.copy_from_slice(self.input(earlier, *input, pass, values));
                }
                Instruction::Join { input, skip, output } => {
                    let (out, earlier) = self.slot_and_earlier(space.activations, *output, pass.batch);
                    out.copy_from_slice(self.input(earlier, *input, pass, values));
                    sums::add_rows(pass.kernel, self.input(earlier, *skip, pass, values), out);
                }
            }
        }
    }

    /// Copies the only output of each example.
    fn single_outputs(&self, space: &mut Workspace<'_>, batch: usize) {
        let rows = self.output_rows();
        let (out, _) = self.slot_and_earlier(space.activations, self.program.output, batch);
        let values = out.chunks_exact(rows.stride);
        space.outputs.iter_mut().zip(values).for_each(|(output, row)| *output = row[0]);
    }

    /// Returns the score of a batch after its forward pass.
    fn score(&self, batch: Batch<'_>, space: &mut Workspace<'_>) -> Score {
        let rows = self.output_rows();
        match self.stack.task {
            Task::Classes | Task::NextSymbol => {
                let (out, _) = self.slot_and_earlier(space.activations, self.program.output, batch.len());
                softmax::score(self.kernel, rows, out, batch.targets.classes())
            }
            Task::Binary => {
                self.single_outputs(space, batch.len());
                logistic::score(space.outputs, batch.targets.classes())
            }
            Task::Regression(loss) => {
                self.single_outputs(space, batch.len());
                let mut score = Score::default();
                for (&prediction, &y) in space.outputs.iter().zip(batch.targets.values()) {
                    let loss = loss.loss(f64::from(prediction) - f64::from(y));
                    score += Score { loss, sums: Task::regression_sums(prediction, y) };
                }
                score
            }
        }
    }

    /// Writes the slopes of the outputs, multiplied by `scale`.
    fn output_slopes(&self, batch: Batch<'_>, scale: f32, space: &mut Workspace<'_>) {
        let (rows, output) = (self.output_rows(), self.program.output);
        let is_single = match self.stack.task {
            Task::Classes | Task::NextSymbol => false,
            Task::Binary => {
                self.single_outputs(space, batch.len());
                kernel_logistic::residuals(self.kernel, space.outputs, batch.targets.classes(), scale);
                true
            }
            Task::Regression(loss) => {
                self.single_outputs(space, batch.len());
                for (prediction, y) in space.outputs.iter_mut().zip(batch.targets.values()) {
                    *prediction = scale * loss.slope(*prediction - y);
                }
                true
            }
        };
        let (slopes, _) = self.slot_and_earlier(space.slopes, output, batch.len());
        if is_single {
            slopes.fill(0.0);
            for (row, slope) in slopes.chunks_exact_mut(rows.stride).zip(&*space.outputs) {
                row[0] = *slope;
            }
        } else {
            let (out, _) = self.slot_and_earlier(space.activations, output, batch.len());
            slopes.copy_from_slice(out);
            softmax::residuals(self.kernel, rows, slopes, batch.targets.classes(), scale);
        }
    }

    /// Runs the backward pass from the slopes of the outputs, and moves the parameters.
    fn backward(&self, pass: &Pass<'_>, values: &[f32], space: &mut Workspace<'_>, mut target: Target<'_>) {
        let (mut params, mut memory) = (self.working_len, self.memory_len(pass.batch));
        for instruction in self.program.instructions.iter().rev() {
            let own_len = instruction.memory_len(pass.batch);
            memory -= own_len;
            let own = &mut space.memory[memory..][..own_len];
            match instruction {
                Instruction::Apply { operation, input, output } => {
                    let len = operation.working_len();
                    params -= len;
                    if !self.program.needs_slopes[*output] {
                        continue;
                    }
                    let descent = target.part(params, len);
                    let (out, earlier) = self.slot_and_earlier(space.activations, *output, pass.batch);
                    let x = self.input(earlier, *input, pass, values);
                    let (slopes, before) = self.slot_and_earlier(space.slopes, *output, pass.batch);
                    let to = self.program.needs_slopes[*input]
                        .then(|| self.slot_and_earlier(before, *input, pass.batch).0);
                    operation.backward(
                        pass,
                        descent,
                        Backward { input: x, output: out, slopes, to, memory: own },
                    );
                }
                Instruction::Replace { operation, slot } => {
                    if !self.program.needs_slopes[*slot] {
                        continue;
                    }
                    let (out, _) = self.slot_and_earlier(space.activations, *slot, pass.batch);
                    let (slopes, _) = self.slot_and_earlier(space.slopes, *slot, pass.batch);
                    operation.backward(pass, out, slopes, own);
                }
                Instruction::Fork { input, output } => {
                    if !self.program.needs_slopes[*input] {
                        continue;
                    }
                    let (slopes, before) = self.slot_and_earlier(space.slopes, *output, pass.batch);
                    let (to, _) = self.slot_and_earlier(before, *input, pass.batch);
                    sums::add_rows(pass.kernel, slopes, to);
                }
                Instruction::Join { input, skip, output } => {
                    let (slopes, before) = self.slot_and_earlier(space.slopes, *output, pass.batch);
                    for slot in [*input, *skip] {
                        if self.program.needs_slopes[slot] {
                            self.slot_and_earlier(before, slot, pass.batch).0.copy_from_slice(slopes);
                        }
                    }
                }
            }
        }
    }

    /// Runs a forward and a backward pass. The slope of every loss is multiplied by `scale`.
    fn descend(
        &self,
        batch: Batch<'_>,
        scale: f32,
        key: Option<u64>,
        target: Target<'_>,
        scratch: &mut [f32],
    ) {
        let (pass, values) = self.pass(batch, key);
        let mut space = self.workspace(batch.len(), true, scratch);
        self.forward(target.working(), &pass, values, &mut space);
        self.output_slopes(batch, scale, &mut space);
        self.backward(&pass, values, &mut space, target);
    }

    /// Calls a function with each operation with parameters, and the ranges of its parameters in
    /// flat order and in working form.
    fn each_layer(&self, mut each: impl FnMut(&dyn Operation, [std::ops::Range<usize>; 2])) {
        let (mut flat, mut working) = (0, 0);
        for operation in self.program.instructions.iter().filter_map(Instruction::operation) {
            let ends = [flat + operation.flat_len(), working + operation.working_len()];
            if operation.flat_len() > 0 {
                each(operation, [flat..ends[0], working..ends[1]]);
            }
            [flat, working] = ends;
        }
    }
}

impl Target<'_> {
    fn working(&self) -> &[f32] {
        match self {
            Self::InPlace { working, .. } => working,
            Self::Into { working, .. } => working,
        }
    }

    /// Returns the parameters of an operation.
    fn part(&mut self, start: usize, len: usize) -> Descent<'_> {
        match self {
            Self::InPlace { working, decay } => {
                Descent::InPlace { params: &mut working[start..][..len], decay: *decay }
            }
            Self::Into { working, total } => {
                Descent::Into { params: &working[start..][..len], total: &mut total[start..][..len] }
            }
        }
    }
}

impl Instruction {
    /// Returns the operation, which may have parameters.
    fn operation(&self) -> Option<&dyn Operation> {
        match self {
            Self::Apply { operation, .. } => Some(&**operation),
            Self::Replace { .. } | Self::Fork { .. } | Self::Join { .. } => None,
        }
    }

    fn memory_len(&self, batch: usize) -> usize {
        match self {
            Self::Apply { operation, .. } => operation.memory_len(batch),
            Self::Replace { operation, .. } => operation.memory_len(batch),
            Self::Fork { .. } | Self::Join { .. } => 0,
        }
    }
}

/// Returns the parts of a batch.
fn parts<'a>(batch: Batch<'a>) -> impl Iterator<Item = Batch<'a>> {
    (0..batch.len()).step_by(PART).map(move |start| batch.part(start..(start + PART).min(batch.len())))
}

impl Model for StackNetwork {
    fn num_params(&self) -> usize {
        self.num_params
    }

    fn task(&self) -> Task {
        self.stack.task
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.stack.tensors()
    }

    fn init(&self, stream: &mut Stream, params: &mut [f32]) {
        self.each_layer(|operation, [flat, _]| operation.init(stream, &mut params[flat]));
    }

    fn draws_in_steps(&self) -> bool {
        self.program.has_dropout
    }

    fn scratch_len(&self, batch: usize) -> usize {
        let part = self.pass_len(batch.min(PART), true);
        2 * section(self.working_len) + part
    }

    fn gradient(&self, params: &[f32], batch: Batch<'_>, gradient: &mut [f32], scratch: &mut [f32]) -> f64 {
        let mut memory = scratch;
        let working = take(&mut memory, self.working_len);
        let total = take(&mut memory, self.working_len);
        self.load(params, working);
        total.fill(0.0);
        let (mut loss, scale) = (0.0, 1.0 / batch.len() as f32);
        for part in parts(batch) {
            loss += self.evaluate(working, part, memory).loss;
            self.descend(part, scale, None, Target::Into { working, total }, memory);
        }
        self.store(total, gradient);
        loss / batch.len() as f64
    }

    fn evaluate(&self, working: &[f32], batch: Batch<'_>, scratch: &mut [f32]) -> Score {
        let mut score = Score::default();
        for part in parts(batch) {
            let (pass, values) = self.pass(part, None);
            let mut space = self.workspace(part.len(), false, scratch);
            self.forward(working, &pass, values, &mut space);
            score += self.score(part, &mut space);
        }
        score
    }

    fn working_len(&self) -> usize {
        self.working_len
    }

    fn load(&self, params: &[f32], working: &mut [f32]) {
        self.each_layer(|operation, [flat, range]| operation.load(&params[flat], &mut working[range]));
    }

    fn store(&self, working: &[f32], params: &mut [f32]) {
        self.each_layer(|operation, [flat, range]| operation.store(&working[range], &mut params[flat]));
    }

    fn step_scratch_len(&self, batch: usize) -> usize {
        self.pass_len(batch, true)
    }

    fn step(&self, working: &mut [f32], batch: Batch<'_>, step: Step<'_>, scratch: &mut [f32]) {
        let scale = -step.learning_rate / batch.len() as f32;
        let target = Target::InPlace { working: &mut *working, decay: step.decay() };
        self.descend(batch, scale, Some(step.key), target, scratch);
        step.add_pull(working);
    }
}
