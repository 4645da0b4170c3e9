// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "llm_runtime/registry/program_registry.h"
#include "llm_runtime/signature/key_writer.h"
#include "llm_runtime/support/errors.h"
#include "registry/decode_keys.h"

namespace llm_runtime::registry {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

template <class T>
std::string packed(const T& value) {
  signature::KeyWriter writer;
  writer.value(value);
  std::string bytes = std::move(writer).finish();
  return bytes.substr(1, bytes.size() - 2);
}

TEST(ProgramRegistry, IdsCountUpAndEqualMaterialIsFound) {
  ProgramRegistry registry;
  EXPECT_EQ(registry.find(decode_key(32, 64)), kNoProgram);
  EXPECT_EQ(registry.add(decode_key(32, 64)), ProgramId{0});
  EXPECT_EQ(registry.add(decode_key(16, 64)), ProgramId{1});
  EXPECT_EQ(registry.find(decode_key(32, 64)), ProgramId{0});
  EXPECT_EQ(registry.find(decode_key(16, 64)), ProgramId{1});
  EXPECT_EQ(registry.find(decode_key(16, 8)), kNoProgram);
  EXPECT_EQ(registry.key(ProgramId{1}), decode_key(16, 64));
  EXPECT_EQ(registry.size(), 2U);
}

TEST(ProgramRegistry, RefusesADuplicateAndAnUnknownId) {
  ProgramRegistry registry;
  registry.add(decode_key(32, 64));
  EXPECT_THAT([&] { registry.add(decode_key(32, 64)); },
              ThrowsMessage<IllegalState>(HasSubstr("program 0")));
  EXPECT_EQ(registry.size(), 1U);
  EXPECT_THAT([&] { registry.key(ProgramId{1}); },
              ThrowsMessage<InvalidValue>(HasSubstr("program 1")));
  EXPECT_THROW(registry.key(kNoProgram), InvalidValue);
}

TEST(ProgramRegistry, KeysStayWhereTheyAreWhileTheRegistryGrows) {
  ProgramRegistry registry;
  const signature::SignatureKey& first = registry.key(registry.add(decode_key(1, 1)));
  for (std::int64_t width = 2; width < 2000; ++width) registry.add(decode_key(1, width));
  EXPECT_EQ(&registry.key(ProgramId{0}), &first);
  for (std::int64_t width = 1; width < 2000; ++width)
    EXPECT_EQ(registry.find(decode_key(1, width)), static_cast<ProgramId>(width - 1));
}

TEST(ProgramRegistry, NearestHasTheFewestDifferingFieldsAndTheEarliestWins) {
  ProgramRegistry registry;
  EXPECT_FALSE(registry.nearest(decode_key(32, 64)).has_value());
  registry.add(prefill_key(128));
  EXPECT_FALSE(registry.nearest(decode_key(32, 64)).has_value());  // another kind explains nothing
  registry.add(decode_key(16, 8, "topk"));
  registry.add(decode_key(32, 8));
  registry.add(decode_key(16, 64));
  const auto nearest = registry.nearest(decode_key(32, 64));
  ASSERT_TRUE(nearest.has_value());
  EXPECT_EQ(nearest->index, 2U);
  EXPECT_EQ(nearest->field, "page_table_width");
  EXPECT_EQ(nearest->wanted, packed(std::int64_t{64}));
  EXPECT_EQ(nearest->registered, packed(std::int64_t{8}));
  EXPECT_FALSE(registry.nearest(decode_key(16, 64)).has_value());  // registered: nothing to explain
}

TEST(ProgramRegistry, FindsWhileAnotherThreadAdds) {
  ProgramRegistry registry;
  std::thread writer([&registry] {
    for (std::int64_t width = 1; width <= 300; ++width) registry.add(decode_key(1, width));
  });
  for (std::int64_t width = 1; width <= 300; ++width) {
    const ProgramId id = registry.find(decode_key(1, width));
    if (id == kNoProgram) continue;
    EXPECT_EQ(registry.key(id), decode_key(1, width));
  }
  writer.join();
  EXPECT_EQ(registry.size(), 300U);
}

}  // namespace
}  // namespace llm_runtime::registry
