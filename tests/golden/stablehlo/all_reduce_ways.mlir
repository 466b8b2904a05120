module @all_reduce_ways attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 4 : i32} {
  func.func public @main(%arg0: tensor<2x3xf32> loc("a"), %arg1: tensor<f32> loc("b")) -> (tensor<2x3xf32> {jax.result_info = "sum"}, tensor<f32> {jax.result_info = "sum"}, tensor<2x3xf32> {jax.result_info = "sum"}, tensor<f32> {jax.result_info = "sum"}, tensor<2x3xf32> {jax.result_info = "sum"}, tensor<f32> {jax.result_info = "sum"}) {
    %0:2 = "stablehlo.all_reduce"(%arg0, %arg1) <{replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> ({
    ^bb0(%1: tensor<f32>, %2: tensor<f32>):
      %3 = stablehlo.add %1, %2 : tensor<f32> loc("native")
      stablehlo.return %3 : tensor<f32>
    }) : (tensor<2x3xf32>, tensor<f32>) -> (tensor<2x3xf32>, tensor<f32>) loc("native")
    %4 = stablehlo.reshape %arg0 : (tensor<2x3xf32>) -> tensor<6xf32> loc("one device")
    %5 = stablehlo.reshape %arg1 : (tensor<f32>) -> tensor<1xf32> loc("one device")
    %6 = stablehlo.concatenate %4, %5, dim = 0 : (tensor<6xf32>, tensor<1xf32>) -> tensor<7xf32> loc("one device")
    %7 = "stablehlo.collective_permute"(%6) <{source_target_pairs = dense<[[1, 0]]> : tensor<1x2xi64>}> : (tensor<7xf32>) -> tensor<7xf32> loc("one device")
    %8 = stablehlo.add %6, %7 : tensor<7xf32> loc("one device")
    %9 = "stablehlo.collective_permute"(%6) <{source_target_pairs = dense<[[2, 0]]> : tensor<1x2xi64>}> : (tensor<7xf32>) -> tensor<7xf32> loc("one device")
    %10 = stablehlo.add %8, %9 : tensor<7xf32> loc("one device")
    %11 = "stablehlo.collective_permute"(%6) <{source_target_pairs = dense<[[3, 0]]> : tensor<1x2xi64>}> : (tensor<7xf32>) -> tensor<7xf32> loc("one device")
    %12 = stablehlo.add %10, %11 : tensor<7xf32> loc("one device")
    %13 = stablehlo.replica_id : tensor<ui32> loc("one device")
    %14 = "stablehlo.collective_permute"(%12) <{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> : (tensor<7xf32>) -> tensor<7xf32> loc("one device")
    %15 = stablehlo.constant dense<1> : tensor<ui32> loc("one device")
    %16 = stablehlo.compare EQ, %13, %15 : (tensor<ui32>, tensor<ui32>) -> tensor<i1> loc("one device")
    %17 = stablehlo.select %16, %14, %12 : tensor<i1>, tensor<7xf32> loc("one device")
    %18 = "stablehlo.collective_permute"(%12) <{source_target_pairs = dense<[[0, 2]]> : tensor<1x2xi64>}> : (tensor<7xf32>) -> tensor<7xf32> loc("one device")
    %19 = stablehlo.constant dense<2> : tensor<ui32> loc("one device")
    %20 = stablehlo.compare EQ, %13, %19 : (tensor<ui32>, tensor<ui32>) -> tensor<i1> loc("one device")
    %21 = stablehlo.select %20, %18, %17 : tensor<i1>, tensor<7xf32> loc("one device")
    %22 = "stablehlo.collective_permute"(%12) <{source_target_pairs = dense<[[0, 3]]> : tensor<1x2xi64>}> : (tensor<7xf32>) -> tensor<7xf32> loc("one device")
    %23 = stablehlo.constant dense<3> : tensor<ui32> loc("one device")
    %24 = stablehlo.compare EQ, %13, %23 : (tensor<ui32>, tensor<ui32>) -> tensor<i1> loc("one device")
    %25 = stablehlo.select %24, %22, %21 : tensor<i1>, tensor<7xf32> loc("one device")
    %26 = stablehlo.slice %25 [0:6] : (tensor<7xf32>) -> tensor<6xf32> loc("one device")
    %27 = stablehlo.reshape %26 : (tensor<6xf32>) -> tensor<2x3xf32> loc("one device")
    %28 = stablehlo.slice %25 [6:7] : (tensor<7xf32>) -> tensor<1xf32> loc("one device")
    %29 = stablehlo.reshape %28 : (tensor<1xf32>) -> tensor<f32> loc("one device")
    %30 = stablehlo.reshape %arg0 : (tensor<2x3xf32>) -> tensor<6xf32> loc("hierarchical")
    %31 = stablehlo.reshape %arg1 : (tensor<f32>) -> tensor<1xf32> loc("hierarchical")
    %32 = stablehlo.concatenate %30, %31, dim = 0 : (tensor<6xf32>, tensor<1xf32>) -> tensor<7xf32> loc("hierarchical")
    %33 = stablehlo.constant dense<0.0> : tensor<f32> loc("hierarchical")
    %34 = stablehlo.pad %32, %33, low = [0], high = [1], interior = [0] : (tensor<7xf32>, tensor<f32>) -> tensor<8xf32> loc("hierarchical")
    %35 = "stablehlo.reduce_scatter"(%34) <{replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, scatter_dimension = 0 : i64}> ({
    ^bb0(%36: tensor<f32>, %37: tensor<f32>):
      %38 = stablehlo.add %36, %37 : tensor<f32> loc("hierarchical")
      stablehlo.return %38 : tensor<f32>
    }) : (tensor<8xf32>) -> tensor<4xf32> loc("hierarchical")
    %39 = "stablehlo.all_reduce"(%35) <{replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>}> ({
    ^bb0(%40: tensor<f32>, %41: tensor<f32>):
      %42 = stablehlo.add %40, %41 : tensor<f32> loc("hierarchical")
      stablehlo.return %42 : tensor<f32>
    }) : (tensor<4xf32>) -> tensor<4xf32> loc("hierarchical")
    %43 = "stablehlo.all_gather"(%39) <{all_gather_dim = 0 : i64, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>}> : (tensor<4xf32>) -> tensor<8xf32> loc("hierarchical")
    %44 = stablehlo.slice %43 [0:7] : (tensor<8xf32>) -> tensor<7xf32> loc("hierarchical")
    %45 = stablehlo.slice %44 [0:6] : (tensor<7xf32>) -> tensor<6xf32> loc("hierarchical")
    %46 = stablehlo.reshape %45 : (tensor<6xf32>) -> tensor<2x3xf32> loc("hierarchical")
    %47 = stablehlo.slice %44 [6:7] : (tensor<7xf32>) -> tensor<1xf32> loc("hierarchical")
    %48 = stablehlo.reshape %47 : (tensor<1xf32>) -> tensor<f32> loc("hierarchical")
    return %0#0, %0#1, %27, %29, %46, %48 : tensor<2x3xf32>, tensor<f32>, tensor<2x3xf32>, tensor<f32>, tensor<2x3xf32>, tensor<f32>
  }
}
