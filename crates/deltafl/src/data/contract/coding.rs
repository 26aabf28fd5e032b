//! Conversion of data to the category and class numbers of a contract.
//!
//! A device that has only some of the categories and classes numbers them differently.

use std::collections::HashMap;

use deltafl::data::{
    DeviceExamples, FeatureColumn, Federation, FederationBuilder, InputKind, StoredTargets, TargetKind,
};

use super::{ContractMismatch, DataContract, features};

/// The maximum number of values of the encoded examples. It bounds the memory that a server's contract
/// can require from a device.
const MOST_VALUES: u64 = 1 << 28;

/// Reorders features and classes as in the contract, matching them by name.
///
/// Data that is already encoded this way, or that has no names, is returned unchanged.
pub(super) fn coded(contract: &DataContract, data: Federation) -> Result<Federation, ContractMismatch> {
    let (Some(own), Some(wanted)) = (features(data.kind()), features(contract.inputs)) else {
        return Ok(data);
    };
    let columns = column_places(data.feature_columns(), &contract.columns)?;
    let classes = class_places(&data, contract)?;
    let widened =
        matches!((data.kind(), contract.inputs), (InputKind::Bytes { .. }, InputKind::Dense { .. }));
    if columns.is_none() && classes.is_none() && !widened {
        return Ok(data);
    }
    let misfit = || ContractMismatch::Inputs { found: data.kind(), expected: contract.inputs };
    let places = columns.unwrap_or_else(|| (0..own).collect());
    if places.len() != own || places.iter().any(|&place| place >= wanted) {
        return Err(misfit());
    }
    let examples: u64 = data.devices().map(|k| data.example_count(k)).sum();
    let values = examples.saturating_mul(wanted as u64);
    if values > MOST_VALUES {
        return Err(ContractMismatch::TooWide { values, most: MOST_VALUES });
    }
    let target = match data.classes() {
        0 => TargetKind::Values,
        _ => TargetKind::Classes(contract.classes),
    };
    let mut builder = FederationBuilder::with_target(data.name(), contract.inputs, target);
    builder.class_names(contract.class_names.clone());
    for k in data.devices() {
        let (inputs, targets) = data.stored(k);
        let targets = match targets {
            StoredTargets::Classes(labels) => StoredTargets::Classes(numbered(labels, classes.as_deref())),
            values => values,
        };
        let (id, split) = (data.id(k), data.split_of(k));
        let moved = match (inputs, contract.inputs) {
            (DeviceExamples::Bytes(rows), InputKind::Bytes { .. }) => {
                let rows = moved(rows, own, &places, wanted);
                builder.push(id, split, DeviceExamples::Bytes(&rows), targets.lent())
            }
            (DeviceExamples::Bytes(rows), InputKind::Dense { .. }) => {
                // The value that a model receives for a byte.
                let rows: Vec<f32> = rows.iter().map(|&value| f32::from(value) / 255.0).collect();
                let rows = moved(&rows, own, &places, wanted);
                builder.push(id, split, DeviceExamples::Dense(&rows), targets.lent())
            }
            (DeviceExamples::Dense(rows), InputKind::Dense { .. }) => {
                let rows = moved(rows, own, &places, wanted);
                builder.push(id, split, DeviceExamples::Dense(&rows), targets.lent())
            }
            _ => return Err(misfit()),
        };
        moved.map_err(|_| ContractMismatch::Invalid)?;
    }
    Ok(builder.build())
}

/// Expands rows of `own` features to rows of `wanted` features. Missing features are 0.
fn moved<T: Copy + Default>(rows: &[T], own: usize, places: &[usize], wanted: usize) -> Vec<T> {
    let mut moved = vec![T::default(); rows.len() / own.max(1) * wanted];
    for (row, to) in rows.chunks_exact(own.max(1)).zip(moved.chunks_exact_mut(wanted.max(1))) {
        places.iter().zip(row).for_each(|(&place, &value)| to[place] = value);
    }
    moved
}

/// Renumbers labels. A label out of range, from a modified file, becomes the highest class.
fn numbered(labels: Vec<u32>, places: Option<&[u32]>) -> Vec<u32> {
    let Some((places, last)) = places.and_then(|places| Some((places, *places.last()?))) else {
        return labels;
    };
    labels.into_iter().map(|label| places.get(label as usize).copied().unwrap_or(last)).collect()
}

/// Returns the contract's index of each feature, or `None` if the columns are equal or unnamed.
fn column_places(
    found: &[FeatureColumn],
    expected: &[FeatureColumn],
) -> Result<Option<Vec<usize>>, ContractMismatch> {
    if found.is_empty() || expected.is_empty() || found == expected {
        return Ok(None);
    }
    if found.len() != expected.len() {
        return Err(ContractMismatch::Columns { found: found.len(), expected: expected.len() });
    }
    let (mut places, mut next) = (Vec::new(), 0);
    for (column, (found, expected)) in (1..).zip(found.iter().zip(expected)) {
        if found.name != expected.name {
            let (found, expected) = (found.name.clone(), expected.name.clone());
            return Err(ContractMismatch::Column { column, found, expected });
        }
        let name = || found.name.clone();
        match (found.categories.is_empty(), expected.categories.is_empty()) {
            (true, true) => places.push(next),
            (true, false) => return Err(ContractMismatch::Numbers { name: name() }),
            (false, true) => return Err(ContractMismatch::Words { name: name() }),
            (false, false) => {
                let known: HashMap<&str, usize> =
                    expected.categories.iter().zip(0..).map(|(text, place)| (text.as_str(), place)).collect();
                for text in &found.categories {
                    let place = known.get(text.as_str()).ok_or_else(|| ContractMismatch::Category {
                        name: name(),
                        category: text.clone(),
                        expected: expected.categories.clone(),
                    })?;
                    places.push(next + place);
                }
            }
        }
        next += expected.categories.len().max(1);
    }
    Ok(Some(places))
}

/// Returns the contract's number of each class, or `None` if the numbers are equal.
///
/// Classes without names are identified by their numbers; a device may have only the lowest ones.
fn class_places(data: &Federation, contract: &DataContract) -> Result<Option<Vec<u32>>, ContractMismatch> {
    let (found, expected) = (data.class_names(), &contract.class_names[..]);
    if data.classes() == 0 || contract.classes == 0 {
        return Ok(None);
    }
    if found.is_empty() || expected.is_empty() {
        return Ok((data.classes() < contract.classes).then(|| (0..data.classes() as u32).collect()));
    }
    if found == expected {
        return Ok(None);
    }
    let place = |name: &String| {
        let place = expected.iter().take(contract.classes).position(|known| known == name);
        place
            .map(|place| place as u32)
            .ok_or_else(|| ContractMismatch::Class { name: name.clone(), expected: expected.to_vec() })
    };
    found.iter().map(place).collect::<Result<_, _>>().map(Some)
}

#[cfg(test)]
mod tests {
    use deltafl::data::{FederationIndex, Split};

    use super::*;

    fn names(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    fn column(name: &str, categories: &[&str]) -> FeatureColumn {
        FeatureColumn { name: name.to_owned(), categories: names(categories) }
    }

    #[test]
    fn features_are_found_by_the_names_of_columns_and_categories() {
        let expected = [column("age", &[]), column("city", &["Oslo", "Paris", "Rome"]), column("pulse", &[])];
        let places = |found: &[FeatureColumn]| column_places(found, &expected);
        let said = |found: &[FeatureColumn]| places(found).unwrap_err().to_string();
        assert_eq!(places(&expected), Ok(None));
        let some = [column("age", &[]), column("city", &["Rome", "Oslo"]), column("pulse", &[])];
        assert_eq!(places(&some), Ok(Some(vec![0, 3, 1, 4])));
        assert_eq!(said(&some[..2]), "the table has 2 columns, but the contract has 3");
        let swapped = said(&[column("weight", &[]), column("city", &["Rome"]), column("pulse", &[])]);
        assert_eq!(swapped, r#"column 1 of the table is "weight", but the contract has "age""#);
        let unknown = said(&[column("age", &[]), column("city", &["Bonn"]), column("pulse", &[])]);
        assert_eq!(
            unknown,
            r#"column "city" has "Bonn", which is not in the contract: ["Oslo", "Paris", "Rome"]"#
        );
        let words = said(&[column("age", &["old"]), column("city", &["Rome"]), column("pulse", &[])]);
        assert_eq!(words, r#"column "age" contains words, but the contract has numbers"#);
        let numbers = said(&[column("age", &[]), column("city", &[]), column("pulse", &[])]);
        assert_eq!(numbers, r#"column "city" contains numbers, but the contract has words"#);
    }

    #[test]
    fn a_row_moves_to_its_places() {
        assert_eq!(moved(&[5, 1, 0, 6, 0, 1], 3, &[0, 3, 1], 4), [5, 0, 0, 1, 6, 1, 0, 0]);
    }

    fn device(kind: InputKind, classes: &[&str], labels: &[u32]) -> Federation {
        let mut builder = FederationBuilder::new("t", kind, classes.len().max(2));
        builder.class_names(names(classes));
        let inputs = match kind {
            InputKind::Bytes { .. } => DeviceExamples::Bytes(&[255, 0]),
            _ => DeviceExamples::Dense(&[1.0, 0.0]),
        };
        builder.push("a", Split::Train, inputs, labels).unwrap();
        builder.build()
    }

    #[test]
    fn classes_are_found_by_their_names() {
        let dense = InputKind::Dense { dim: 1 };
        let contract = DataContract::from_federation(&device(dense, &["ill", "unclear", "well"], &[0, 2]));
        let fitted = contract.fit(device(dense, &["well", "ill"], &[0, 1])).unwrap();
        assert_eq!((fitted.classes(), fitted.class_names()), (3, &names(&["ill", "unclear", "well"])[..]));
        assert_eq!(fitted.stored(FederationIndex(0)).1, StoredTargets::Classes(vec![2, 0]));
        let unknown = contract.fit(device(dense, &["ill", "dead"], &[0, 1])).unwrap_err().to_string();
        assert_eq!(unknown, r#"class "dead" is not in the contract: ["ill", "unclear", "well"]"#);
        let unnamed = contract.fit(device(dense, &[], &[0, 1])).unwrap();
        assert_eq!(unnamed.classes(), 3, "a device that has seen the lowest numbers");
    }

    #[test]
    fn bytes_are_the_numbers_that_they_stand_for() {
        let contract =
            DataContract::from_federation(&device(InputKind::Dense { dim: 1 }, &["no", "yes"], &[0, 1]));
        let fitted = contract.fit(device(InputKind::Bytes { dim: 1 }, &["no", "yes"], &[0, 1])).unwrap();
        assert!(matches!(fitted.stored(FederationIndex(0)).0, DeviceExamples::Dense(&[1.0, 0.0])));
    }

    #[test]
    fn a_contract_that_contradicts_itself_or_asks_for_much_memory_is_refused() {
        let (own, dense) = (device(InputKind::Dense { dim: 1 }, &["no", "yes"], &[0, 1]), &["yes", "no"]);
        let mut contract = DataContract::from_federation(&own);
        contract.class_names = names(dense);
        contract.inputs = InputKind::Dense { dim: 1 << 28 };
        assert!(matches!(contract.fit(own.clone()), Err(ContractMismatch::TooWide { .. })));
        contract.inputs = InputKind::Dense { dim: 0 };
        assert!(matches!(contract.fit(own), Err(ContractMismatch::Inputs { .. })));
    }
}
